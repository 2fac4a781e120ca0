import com.sun.messaging.ConnectionConfiguration;
import com.sun.messaging.ConnectionFactory;
import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * Producers and one consumer of a queue: prints messages a second, a line a run. The consumer checks
 * that every message of a producer comes once and in order. Arguments: address, queue, messages,
 * runs, producers, and whether messages are persistent, so that each producer waits for the broker.
 */
public final class Load {
    private static Connection connect(String address) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setProperty(ConnectionConfiguration.imqAddressList, address);
        Connection connection = factory.createConnection();
        connection.start();
        return connection;
    }

    public static void main(String[] arguments) throws Exception {
        Logger.getLogger("").setLevel(Level.OFF);
        int count = Integer.parseInt(arguments[2]);
        int runs = Integer.parseInt(arguments[3]);
        int producers = Integer.parseInt(arguments[4]);
        boolean isKept = Boolean.parseBoolean(arguments[5]);
        int mode = isKept ? DeliveryMode.PERSISTENT : DeliveryMode.NON_PERSISTENT;
        Connection sending = connect(arguments[0]);
        Connection receiving = connect(arguments[0]);
        Session in = receiving.createSession(false, Session.DUPS_OK_ACKNOWLEDGE);
        MessageConsumer consumer = in.createConsumer(in.createQueue(arguments[1]));
        for (int run = 0; run < runs; run++) {
            long began = System.nanoTime();
            Thread[] senders = new Thread[producers];
            for (int place = 0; place < producers; place++) {
                int which = place;
                int each = count / producers;
                senders[place] = new Thread(() -> send(sending, arguments[1], which, each, mode));
                senders[place].start();
            }
            int[] next = new int[producers];
            for (int number = 0; number < count / producers * producers; number++) {
                BytesMessage message = (BytesMessage) consumer.receive(20_000);
                int which = message == null ? 0 : message.readInt();
                if (message == null || message.readInt() != next[which]++) {
                    throw new IllegalStateException("a message is missing, or is not the next one");
                }
            }
            for (Thread sender : senders) {
                sender.join();
            }
            System.out.println(Math.round(count * 1e9 / (System.nanoTime() - began)));
        }
        sending.close();
        receiving.close();
    }

    private static void send(Connection sending, String name, int which, int count, int mode) {
        try {
            Session out = sending.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = out.createProducer(out.createQueue(name));
            producer.setDeliveryMode(mode);
            for (int number = 0; number < count; number++) {
                BytesMessage message = out.createBytesMessage();
                message.writeInt(which);
                message.writeInt(number);
                message.writeBytes(new byte[192]);
                producer.send(message);
            }
            out.close();
        } catch (Exception problem) {
            throw new RuntimeException(problem);
        }
    }
}
