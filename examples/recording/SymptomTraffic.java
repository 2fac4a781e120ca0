import com.sun.messaging.ConnectionConfiguration;
import com.sun.messaging.ConnectionFactory;
import jakarta.jms.*;

/**
 * JMS clients that do one thing wrong, or meet a broker that does not let them.
 *
 * <p>usage: SymptomTraffic SYMPTOM ADDRESS [OTHER BROKER OF ITS CLUSTER]. All go to the queue or topic `symptoms`.
 */
public final class SymptomTraffic {
    private static final String NAME = "symptoms";
    /** Longer than what is under way is taken for stuck. */
    private static final long LONG_MS = 1600;
    private static String address;

    private static Connection connect(String password, String flowLimit) throws JMSException {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setProperty(ConnectionConfiguration.imqAddressList, address);
        factory.setProperty(ConnectionConfiguration.imqReconnectEnabled, "false");
        if (flowLimit != null) {
            factory.setProperty(ConnectionConfiguration.imqConsumerFlowLimit, flowLimit);
        }
        return factory.createConnection("guest", password);
    }

    private static void send(int count, String color, long timeToLive, boolean toTopic) throws JMSException {
        try (Connection connection = connect("guest", null)) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer =
                session.createProducer(toTopic ? session.createTopic(NAME) : session.createQueue(NAME));
            producer.setTimeToLive(timeToLive);
            for (int number = 1; number <= count; number++) {
                TextMessage message = session.createTextMessage("state " + number);
                message.setStringProperty("color", color);
                producer.send(message);
            }
        }
    }

    /** Receives until nothing comes for a while; says how many. */
    private static int receive(Session session, MessageConsumer consumer, int most) throws JMSException {
        int count = 0;
        while (count < most && consumer.receive(500) != null) {
            count++;
        }
        return count;
    }

    private static void healthy() throws Exception {
        try (Connection connection = connect("guest", null)) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue(NAME));
            connection.start();
            send(20, "red", 0, false);
            receive(session, consumer, 20);
        }
    }

    /** Of three subscribers one takes a fifth of a second for each message. */
    private static void slowConsumer() throws Exception {
        try (Connection quick = connect("guest", null); Connection other = connect("guest", null);
                Connection slow = connect("guest", null)) {
            for (Connection each : new Connection[] {quick, other, slow}) {
                each.setClientID(each == slow ? "slow" : each == quick ? "quick" : "other");
                Session session = each.createSession(false, Session.AUTO_ACKNOWLEDGE);
                session.createConsumer(session.createTopic(NAME)).setMessageListener(message -> {
                    if (each == slow) {
                        sleep(200);
                    }
                });
                each.start();
            }
            for (int number = 0; number < 8; number++) {
                send(1, "red", 0, true);
                sleep(250);
            }
            sleep(500);
        }
    }

    /** The queue has room for five, and nobody consumes for a while. */
    private static void producerPaused() throws Exception {
        Thread sends = new Thread(() -> {
            try {
                send(12, "red", 0, false);
            } catch (JMSException error) {
                throw new RuntimeException(error);
            }
        });
        sends.start();
        sleep(LONG_MS);
        try (Connection connection = connect("guest", null)) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue(NAME));
            connection.start();
            receive(session, consumer, 12);
            sends.join();
        }
    }

    /** A consumer takes four messages at a time, and its application does not ask for the next. */
    private static void consumerPaused() throws Exception {
        send(12, "red", 0, false);
        try (Connection connection = connect("guest", "4")) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue(NAME));
            connection.start();
            consumer.receive(1000);
            sleep(LONG_MS);
            receive(session, consumer, 11);
        }
    }

    private static void noConsumer() throws Exception {
        send(3, "red", 0, false);
        try (Connection connection = connect("guest", null)) {
            sleep(LONG_MS);
        }
    }

    private static void selector() throws Exception {
        try (Connection connection = connect("guest", null)) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue(NAME), "color = 'green'");
            connection.start();
            send(3, "red", 0, false);
            consumer.receive(LONG_MS);
        }
    }

    /** The client ends without a word, which the capture sees; before, it held three messages for long. */
    private static void unacknowledged() throws Exception {
        send(3, "red", 0, false);
        Connection connection = connect("guest", null);
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(session.createQueue(NAME));
        connection.start();
        receive(session, consumer, 3);
        sleep(LONG_MS);
        Runtime.getRuntime().halt(0);
    }

    private static void givenBack() throws Exception {
        send(3, "red", 0, false);
        try (Connection connection = connect("guest", null)) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(session.createQueue(NAME));
            connection.start();
            receive(session, consumer, 3);
            session.rollback();
            receive(session, consumer, 3);
            session.commit();
        }
    }

    private static void expired() throws Exception {
        send(3, "red", 200, false);
        try (Connection connection = connect("guest", null)) {
            sleep(LONG_MS);
        }
    }

    /** What expired is read from the dead message queue. */
    private static void dead() throws Exception {
        send(3, "red", 200, false);
        try (Connection connection = connect("guest", null)) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            sleep(600);
            MessageConsumer first = session.createConsumer(session.createQueue(NAME));
            connection.start();
            first.receive(600);  // by which the broker looks at what has expired
            MessageConsumer consumer = session.createConsumer(session.createQueue("mq.sys.dmq"));
            receive(session, consumer, 3);
        }
    }

    /** The queue has room for five, and refuses the rest. */
    private static void overLimit() throws Exception {
        try {
            send(8, "red", 0, false);
        } catch (JMSException expected) {
            System.err.println(expected.getMessage());
        }
    }

    private static void refused() throws Exception {
        try (Connection connection = connect("wrong", null)) {
            connection.start();
        } catch (JMSException expected) {
            System.err.println(expected.getMessage());
        }
    }

    /** A consumer at another broker of the cluster than the producer; something goes wrong between the messages. */
    private static void cluster(String other) throws Exception {
        String home = address;
        address = other;
        try (Connection consumes = connect("guest", null)) {
            Session session = consumes.createSession(false, Session.AUTO_ACKNOWLEDGE);
            session.createConsumer(session.createQueue(NAME)).setMessageListener(message -> {});
            consumes.start();
            address = home;
            send(3, "red", 0, false);
            sleep(LONG_MS);
            meet();
            send(3, "red", 0, false);
            sleep(LONG_MS);
            connect("guest", null).close();
            meet();
        }
    }

    /** A consumer comes to a broker that asks the other one of its cluster first. */
    private static void lock(String other) throws Exception {
        connect("guest", null).close();
        meet();
        address = other;
        Thread consumes = new Thread(() -> {
            try {
                Session session = connect("guest", null).createSession(false, Session.AUTO_ACKNOWLEDGE);
                session.createConsumer(session.createQueue(NAME));
            } catch (JMSException error) {
                throw new RuntimeException(error);
            }
        });
        consumes.setDaemon(true);
        consumes.start();
        sleep(LONG_MS);
        connect("guest", null).close();
        meet();
    }

    /** Waits for a line, after one that says so. */
    private static void meet() throws Exception {
        System.out.println("your turn");
        System.in.read();
    }

    private static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new RuntimeException(error);
        }
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[1];
        switch (arguments[0]) {
            case "healthy" -> healthy();
            case "slow_consumer" -> slowConsumer();
            case "producer_paused" -> producerPaused();
            case "consumer_paused" -> consumerPaused();
            case "no_consumer" -> noConsumer();
            case "selector" -> selector();
            case "unacknowledged" -> unacknowledged();
            case "given_back" -> givenBack();
            case "expired" -> expired();
            case "dead" -> dead();
            case "over_limit" -> overLimit();
            case "refused" -> refused();
            case "cluster" -> cluster(arguments[2]);
            case "lock" -> lock(arguments[2]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0);
    }
}
