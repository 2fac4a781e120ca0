import com.sun.messaging.ConnectionConfiguration;
import com.sun.messaging.ConnectionFactory;
import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * One producer and one consumer of a queue, non-persistent: prints messages a second, a line a run.
 * The consumer checks that every message comes once and in order. Arguments: address, queue,
 * messages, runs.
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
        Connection sending = connect(arguments[0]);
        Connection receiving = connect(arguments[0]);
        Session out = sending.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Session in = receiving.createSession(false, Session.DUPS_OK_ACKNOWLEDGE);
        Queue queue = out.createQueue(arguments[1]);
        MessageProducer producer = out.createProducer(queue);
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        MessageConsumer consumer = in.createConsumer(queue);
        for (int run = 0; run < runs; run++) {
            long began = System.nanoTime();
            Thread sender = new Thread(() -> {
                try {
                    for (int number = 0; number < count; number++) {
                        BytesMessage message = out.createBytesMessage();
                        message.writeInt(number);
                        message.writeBytes(new byte[196]);
                        producer.send(message);
                    }
                } catch (Exception problem) {
                    throw new RuntimeException(problem);
                }
            });
            sender.start();
            for (int number = 0; number < count; number++) {
                BytesMessage message = (BytesMessage) consumer.receive(20_000);
                if (message == null || message.readInt() != number) {
                    throw new IllegalStateException("message " + number + " is not the next one");
                }
            }
            sender.join();
            System.out.println(Math.round(count * 1e9 / (System.nanoTime() - began)));
        }
        sending.close();
        receiving.close();
    }
}
