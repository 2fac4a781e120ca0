import com.sun.messaging.ConnectionConfiguration;
import com.sun.messaging.ConnectionFactory;
import jakarta.jms.*;
import java.io.Serializable;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * A small shop on JMS: orders, payments, shipments, alerts, an audit desk, and a stranger who may not come in.
 *
 * <p>usage: OrderTraffic SECONDS NAME=ADDRESS... Each actor is one connection, to the address named for it, so that
 * a tap there sees this actor alone. The texts and amounts come from a fixed seed. What the actors sent and received
 * goes to standard output, a line of JSON a message.
 */
public final class OrderTraffic {
    private static final String[] CUSTOMERS = {"Ada", "Grace", "Zoë", "Łukasz", "Ngọc", "雪", "Ὑπατία", "🦊 Fox & Co"};
    private static final String[] REGIONS = {"north", "south", "test"};
    private static final Map<String, String> ADDRESSES = new HashMap<>();
    private static long closing;

    /** What billing answers: a class of our own, so that its bytes are all another reader can have of it. */
    public static final class Receipt implements Serializable {
        private static final long serialVersionUID = 1L;
        final String order;
        final BigDecimal amount;
        final Date paid = new Date();

        Receipt(String order, BigDecimal amount) {
            this.order = order;
            this.amount = amount;
        }
    }

    private interface Actor {
        void play(Connection connection) throws Exception;
    }

    private static boolean open() {
        return System.currentTimeMillis() < closing;
    }

    private static Connection connect(String name, String user, String password) throws JMSException {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setProperty(ConnectionConfiguration.imqAddressList, ADDRESSES.get(name));
        factory.setProperty(ConnectionConfiguration.imqReconnectEnabled, "false");
        // A small allowance, so that flow control shows: the C flag, and RESUME_FLOW for more.
        factory.setProperty(ConnectionConfiguration.imqConsumerFlowLimit, "6");
        return factory.createConnection(user, password);
    }

    /** Says what the actor whose thread this is did with a message; gives the message, or null for none. */
    private static Message tell(String event, Message message) throws JMSException {
        if (message != null) {
            String destination = ((com.sun.messaging.Destination) message.getJMSDestination()).getName();
            System.out.println(String.format(
                "{\"connection\": \"%s\", \"event\": \"%s\", \"destination\": \"%s\", \"id\": \"%s\"}",
                Thread.currentThread().getName(), event, destination, message.getJMSMessageID()));
        }
        return message;
    }

    private static void send(MessageProducer producer, Message message) throws JMSException {
        producer.send(message);
        tell("sent", message);
    }

    private static Message receive(MessageConsumer consumer, long timeout) throws JMSException {
        return tell("received", consumer.receive(timeout));
    }

    private static Thread start(String name, Actor actor) {
        Thread thread = new Thread(() -> {
            try (Connection connection = connect(name, "guest", "guest")) {
                if (name.equals("alerts")) {
                    connection.setClientID("alerts-desk");
                }
                connection.start();
                actor.play(connection);
            } catch (Exception failure) {
                throw new AssertionError(name, failure);
            }
        }, name);
        thread.setUncaughtExceptionHandler((which, failure) -> {
            failure.printStackTrace();
            System.exit(1);
        });
        thread.start();
        return thread;
    }

    /** Every property type a JMS client can set, the edges of its range included. */
    private static void describe(Message message, int number, Random random) throws JMSException {
        message.setBooleanProperty("express", number % 3 == 0);
        message.setByteProperty("lane", (byte) (number % 2 == 0 ? Byte.MIN_VALUE : number));
        message.setShortProperty("shelf", (short) random.nextInt(500));
        message.setIntProperty("severity", number % 5);
        message.setLongProperty("number", number == 1 ? Long.MAX_VALUE : number);
        message.setFloatProperty("weight", number % 9 == 0 ? Float.NaN : random.nextFloat() * 30);
        message.setDoubleProperty("total", number % 11 == 0 ? Double.NEGATIVE_INFINITY : random.nextInt(100_000) / 100.0);
        message.setStringProperty("customer", CUSTOMERS[number % CUSTOMERS.length]);
        message.setStringProperty("region", REGIONS[number % REGIONS.length]);
    }

    /** Sends orders and waits for each answer; now and then a compressed note, a quote that expires, a reminder. */
    private static void shop(Connection connection) throws Exception {
        Random random = new Random(2024);
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue answers = session.createTemporaryQueue();
        MessageConsumer answered = session.createConsumer(answers);
        MessageProducer orders = session.createProducer(session.createQueue("shop.orders"));
        MessageProducer notes = session.createProducer(session.createTopic("shop.notes"));
        MessageProducer quotes = session.createProducer(session.createQueue("shop.quotes"));
        MessageProducer reminders = session.createProducer(session.createQueue("shop.reminders"));
        quotes.setTimeToLive(1500);
        reminders.setDeliveryDelay(4000);
        for (int number = 1; open(); number++) {
            MapMessage order = session.createMapMessage();
            order.setString("customer", CUSTOMERS[number % CUSTOMERS.length]);
            order.setLong("order", number);
            order.setInt("pieces", 1 + random.nextInt(9));
            order.setDouble("total", random.nextInt(100_000) / 100.0);
            order.setFloat("weight", random.nextFloat() * 30);
            order.setShort("shelf", (short) random.nextInt(500));
            order.setByte("lane", (byte) number);
            order.setBoolean("express", number % 3 == 0);
            order.setChar("size", "SML".charAt(number % 3));
            byte[] signature = new byte[16];
            random.nextBytes(signature);
            order.setBytes("signature", signature);
            order.setString("voucher", null);
            describe(order, number, random);
            order.setJMSType("order");
            order.setJMSCorrelationID(String.format("order-%04d", number));
            order.setJMSReplyTo(answers);
            orders.setPriority(number % 10);
            send(orders, order);
            receive(answered, 5000);
            if (number % 6 == 0) {
                TextMessage note = session.createTextMessage(("Please handle order " + number + " with care. ").repeat(120));
                note.setBooleanProperty("JMS_SUN_COMPRESS", true);
                send(notes, note);
            }
            if (number % 8 == 0) {
                send(quotes, session.createTextMessage("{\"quote\": " + number + ", \"valid_ms\": 1500}"));
            }
            if (number % 10 == 0) {
                Message reminder = session.createMessage();
                describe(reminder, number, random);
                send(reminders, reminder);
            }
            // A rush every now and then, quiet in between.
            Thread.sleep(number % 20 < 6 ? 300 : 4000);
        }
    }

    /** Takes an order, books the payment and answers, in one transaction; every seventh is rolled back once. */
    private static void billing(Connection connection) throws Exception {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        MessageConsumer orders = session.createConsumer(session.createQueue("shop.orders"));
        MessageProducer payments = session.createProducer(session.createQueue("shop.payments"));
        MessageProducer answers = session.createProducer(null);
        for (Message message = receive(orders, 8000); message != null; message = receive(orders, 8000)) {
            MapMessage order = (MapMessage) message;
            StreamMessage payment = session.createStreamMessage();
            payment.writeLong(order.getLong("order"));
            payment.writeString(order.getString("customer"));
            payment.writeDouble(order.getDouble("total"));
            payment.writeBoolean(order.getBoolean("express"));
            payment.writeBytes(order.getBytes("signature"));
            payment.writeObject(null);
            payment.setStringProperty("method", order.getLong("order") % 2 == 0 ? "card" : "invoice");
            send(payments, payment);
            if (order.getLong("order") % 7 == 0 && !order.getJMSRedelivered()) {
                session.rollback();
                continue;
            }
            ObjectMessage answer = session.createObjectMessage(answer(order));
            answer.setJMSCorrelationID(order.getJMSCorrelationID());
            answers.send(order.getJMSReplyTo(), answer);
            tell("sent", answer);
            session.commit();
        }
    }

    private static Serializable answer(MapMessage order) throws JMSException {
        BigDecimal amount = BigDecimal.valueOf(order.getDouble("total")).setScale(2);
        long number = order.getLong("order");
        if (number % 3 == 0) {
            return new Receipt("order-" + number, amount);
        }
        if (number % 3 == 1) {
            return amount;
        }
        HashMap<String, Object> answer = new HashMap<>();
        answer.put("order", number);
        answer.put("amount", amount);
        answer.put("paid", new Date());
        answer.put("steps", new ArrayList<>(List.of("checked", "booked")));
        return answer;
    }

    /** Ships what is paid: acknowledges by threes, publishes the stock as bytes and alerts as text. */
    private static void warehouse(Connection connection) throws Exception {
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer payments = session.createConsumer(session.createQueue("shop.payments"));
        MessageProducer stock = session.createProducer(session.createTopic("shop.stock"));
        MessageProducer alerts = session.createProducer(session.createTopic("shop.alerts"));
        stock.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        Random random = new Random(7);
        int taken = 0;
        for (Message message = receive(payments, 8000); message != null; message = receive(payments, 8000)) {
            long order = ((StreamMessage) message).readLong();
            if (++taken % 3 == 0) {
                message.acknowledge();
            }
            BytesMessage level = session.createBytesMessage();
            level.writeLong(order);
            level.writeUTF("shelf " + order % 40);
            level.writeShort((short) random.nextInt(500));
            level.writeBytes("ok\n".getBytes(StandardCharsets.UTF_8));
            send(stock, level);
            if (order % 2 == 0) {
                TextMessage alert = session.createTextMessage("shelf " + order % 40 + " is low — « réassort »");
                describe(alert, (int) order, random);
                send(alerts, alert);
            }
        }
    }

    /** A durable subscriber who only wants what matters. */
    private static void alerts(Connection connection) throws Exception {
        Session session = connection.createSession(false, Session.DUPS_OK_ACKNOWLEDGE);
        MessageConsumer desk =
            session.createDurableSubscriber(session.createTopic("shop.alerts"), "desk", "severity >= 2 AND region <> 'test'", false);
        while (open()) {
            receive(desk, 1000);
        }
        desk.close();
        session.unsubscribe("desk");
    }

    /** Listens to every topic of the shop, takes reminders and dead messages, and looks into a queue without taking. */
    private static void audit(Connection connection) throws Exception {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer topics = session.createConsumer(session.createTopic("shop.*"));
        MessageConsumer dead = session.createConsumer(session.createQueue("mq.sys.dmq"));
        MessageConsumer reminders = session.createConsumer(session.createQueue("shop.reminders"));
        QueueBrowser quotes = session.createBrowser(session.createQueue("shop.quotes"));
        for (int round = 1; open(); round++) {
            receive(topics, 500);
            tell("received", dead.receiveNoWait());
            tell("received", reminders.receiveNoWait());
            if (round % 60 == 0) {
                quotes.getEnumeration();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        closing = System.currentTimeMillis() + 1000L * Integer.parseInt(arguments[0]);
        for (int i = 1; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=");
            ADDRESSES.put(pair[0], pair[1]);
        }
        List<Thread> actors = List.of(start("audit", OrderTraffic::audit), start("alerts", OrderTraffic::alerts));
        Thread.sleep(1000);
        List<Thread> others = List.of(
            start("warehouse", OrderTraffic::warehouse), start("billing", OrderTraffic::billing), start("shop", OrderTraffic::shop));
        try (Connection refused = connect("stranger", "guest", "open sesame")) {
            throw new AssertionError("the stranger was let in");
        } catch (JMSSecurityException expected) {
            System.err.println("the stranger was refused");
        }
        for (List<Thread> group : List.of(others, actors)) {
            for (Thread actor : group) {
                actor.join();
            }
        }
    }
}
