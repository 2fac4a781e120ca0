import com.sun.messaging.ConnectionConfiguration;
import com.sun.messaging.ConnectionFactory;
import com.sun.messaging.XAConnectionFactory;
import jakarta.jms.*;
import java.nio.ByteBuffer;
import java.util.Enumeration;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;

/**
 * A depot whose broker is about to die: messages in every state that a file store can hold them in.
 *
 * <p>usage: StoreTraffic PORT fill, StoreTraffic PORT list QUEUE..., or StoreTraffic PORT send QUEUE BYTES. The first
 * says `ready` when all is done and then waits, consumers open, until its standard input ends; so the broker can be
 * killed under it. The second prints the message ids that a browser sees in each queue, one `QUEUE ID` a line. The
 * third sends a message of so many bytes, which count up from 0 again and again.
 */
public final class StoreTraffic {
    private static String address;

    private record Branch(String name) implements Xid {
        @Override
        public int getFormatId() {
            return 4711;
        }

        @Override
        public byte[] getGlobalTransactionId() {
            return name.getBytes();
        }

        @Override
        public byte[] getBranchQualifier() {
            return ByteBuffer.allocate(4).putInt(1).array();
        }
    }

    private static <F extends com.sun.messaging.BasicConnectionFactory> F to(F factory) throws JMSException {
        factory.setProperty(ConnectionConfiguration.imqAddressList, address);
        factory.setProperty(ConnectionConfiguration.imqReconnectEnabled, "false");
        return factory;
    }

    private static Connection connect(String clientId) throws JMSException {
        Connection connection = to(new ConnectionFactory()).createConnection();
        if (clientId != null) {
            connection.setClientID(clientId);
        }
        connection.start();
        return connection;
    }

    private static void send(Session session, Destination destination, int from, int to) throws JMSException {
        MessageProducer producer = session.createProducer(destination);
        for (int number = from; number <= to; number++) {
            TextMessage message = session.createTextMessage(number + " pallets for Zoë");
            message.setIntProperty("number", number);
            message.setBooleanProperty("express", number % 3 == 0);
            producer.send(message);
        }
        producer.close();
    }

    private static void sendLarge(Session session, Destination destination, int number, byte[] body)
            throws JMSException {
        BytesMessage message = session.createBytesMessage();
        message.setIntProperty("number", number);
        message.writeBytes(body);
        MessageProducer producer = session.createProducer(destination);
        producer.send(message);
        producer.close();
    }

    /** Take messages, and acknowledge those up to and with one of them. */
    private static void take(MessageConsumer consumer, int count, int acknowledged) throws JMSException {
        for (int taken = 1; taken <= count; taken++) {
            Message message = consumer.receive(10_000);
            if (taken == acknowledged) {
                message.acknowledge();
            }
        }
    }

    private static void topics() throws JMSException {
        Connection archive = connect("archive");
        Session session = archive.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        session.createDurableSubscriber(session.createTopic("prices"), "all").close();
        archive.close();

        Session desk = connect("desk").createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Topic prices = desk.createTopic("prices");
        MessageConsumer consumer = desk.createDurableSubscriber(prices, "news", "number < 6", false);
        send(desk, prices, 1, 6);
        take(consumer, 4, 2);
    }

    private static void queues() throws JMSException {
        Session session = connect(null).createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Queue orders = session.createQueue("orders");
        Queue freight = session.createQueue("freight");
        send(session, orders, 1, 8);
        sendLarge(session, freight, 1, new byte[6000]);
        sendLarge(session, freight, 2, new byte[6000]);
        take(session.createConsumer(orders), 5, 3);
        Session other = connect(null).createSession(false, Session.CLIENT_ACKNOWLEDGE);
        take(other.createConsumer(freight), 1, 1);
    }

    private static void localTransactions() throws JMSException {
        Session session = connect(null).createSession(true, Session.SESSION_TRANSACTED);
        Queue bookings = session.createQueue("bookings");
        send(session, bookings, 1, 3);
        session.commit();
        send(session, bookings, 4, 4);
        session.rollback();
        MessageConsumer consumer = session.createConsumer(bookings);
        consumer.receive(10_000);
        send(session, bookings, 5, 5);
        session.commit();
        send(session, bookings, 6, 6); // never committed
    }

    private static void xa(String name, int number, boolean committed) throws Exception {
        XAConnection connection = to(new XAConnectionFactory()).createXAConnection();
        connection.start();
        XASession session = connection.createXASession();
        XAResource resource = session.getXAResource();
        Xid branch = new Branch(name);
        resource.start(branch, XAResource.TMNOFLAGS);
        send(session, session.createQueue("ledger"), number, number);
        resource.end(branch, XAResource.TMSUCCESS);
        resource.prepare(branch);
        if (committed) {
            resource.commit(branch, false);
        }
    }

    private static void list(String queue) throws JMSException {
        try (Connection connection = connect(null)) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            Enumeration<?> found = session.createBrowser(session.createQueue(queue)).getEnumeration();
            while (found.hasMoreElements()) {
                System.out.println(queue + " " + ((Message) found.nextElement()).getJMSMessageID());
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        address = "mqtcp://127.0.0.1:" + arguments[0] + "/jms";
        if (arguments[1].equals("list")) {
            for (int at = 2; at < arguments.length; at++) {
                list(arguments[at]);
            }
            System.exit(0);
        }
        if (arguments[1].equals("send")) {
            byte[] body = new byte[Integer.parseInt(arguments[3])];
            for (int at = 0; at < body.length; at++) {
                body[at] = (byte) at;
            }
            try (Connection connection = connect(null)) {
                Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                sendLarge(session, session.createQueue(arguments[2]), 1, body);
            }
            System.exit(0);
        }
        topics();
        queues();
        localTransactions();
        xa("settled", 1, true);
        xa("in doubt", 2, false);
        System.out.println("ready");
        while (System.in.read() >= 0) {
            // until whoever started this has seen enough
        }
        System.exit(0);
    }
}
