import com.sun.messaging.ConnectionConfiguration;
import com.sun.messaging.ConnectionFactory;
import com.sun.messaging.XAConnectionFactory;
import jakarta.jms.BytesMessage;
import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Destination;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.JMSProducer;
import jakarta.jms.JMSRuntimeException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.QueueConnection;
import jakarta.jms.QueueRequestor;
import jakarta.jms.QueueSession;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import jakarta.jms.XAConnection;
import jakarta.jms.XASession;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.logging.Level;
import java.util.logging.Logger;
import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;

/**
 * What the text of Jakarta Messaging promises, asked of a broker through the stock client: prints a
 * line a case, its name and what happened. Arguments: address, then names of cases (all).
 */
public final class Cases {
    private interface Case {
        Object run() throws Exception;
    }

    private static final long LONG = 3000;
    private static final long NONE = 200;
    private static final Map<String, Case> CASES = new LinkedHashMap<>();
    private static final List<AutoCloseable> OPEN = new ArrayList<>();
    private static String address;
    private static String name;

    // --- what cases are made of ------------------------------------------------------------

    private static ConnectionFactory factory(String... settings) throws JMSException {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setProperty(ConnectionConfiguration.imqAddressList, address);
        for (int i = 0; i < settings.length; i += 2) {
            factory.setProperty(settings[i], settings[i + 1]);
        }
        return factory;
    }

    private static Connection connect(String... settings) throws JMSException {
        Connection connection = factory(settings).createConnection();
        connection.start();
        OPEN.add(connection);
        return connection;
    }

    private static Connection client(String id) throws JMSException {
        return connect(ConnectionConfiguration.imqConfiguredClientID, id);
    }

    private static Session session() throws JMSException {
        return session(Session.AUTO_ACKNOWLEDGE);
    }

    private static Session session(int mode) throws JMSException {
        return connect().createSession(mode == Session.SESSION_TRANSACTED, mode);
    }

    private static Queue queue(Session session) throws JMSException {
        return session.createQueue(name);
    }

    private static Topic topic(Session session) throws JMSException {
        return session.createTopic(name);
    }

    private static void send(Session session, Destination to, Object... texts) throws JMSException {
        MessageProducer producer = session.createProducer(to);
        for (Object text : texts) {
            producer.send(session.createTextMessage(String.valueOf(text)));
        }
        producer.close();
    }

    private static String text(Message message) throws JMSException {
        return message == null ? "none" : ((TextMessage) message).getText();
    }

    private static String seen(Message message) throws JMSException {
        if (message == null) {
            return "none";
        }
        int count = message.getIntProperty("JMSXDeliveryCount");
        return text(message) + (message.getJMSRedelivered() ? " again " : " first ") + count;
    }

    /** The texts of all messages that come, and "" behind them if no more come. */
    private static List<String> all(MessageConsumer consumer, int count) throws JMSException {
        List<String> texts = new ArrayList<>();
        Message message;
        while ((message = consumer.receive(texts.size() < count ? LONG : NONE)) != null) {
            texts.add(text(message));
        }
        return texts;
    }

    private static List<String> browse(QueueBrowser browser) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (Object message : Collections.list(browser.getEnumeration())) {
            texts.add(text((Message) message));
        }
        return texts;
    }

    /** A listener of asynchronous sending that tells what it hears: the kind of a problem, too. */
    private static CompletionListener hearing(
            BlockingQueue<String> heard, Function<Message, String> shown) {
        return new CompletionListener() {
            @Override
            public void onCompletion(Message message) {
                heard.add(shown.apply(message));
            }

            @Override
            public void onException(Message message, Exception problem) {
                heard.add(problem.getClass().getSimpleName());
            }
        };
    }

    private static String failure(Case attempt) {
        try {
            return String.valueOf(attempt.run());
        } catch (Exception problem) {
            return problem instanceof XAException refused
                    ? "XAException " + refused.errorCode
                    : problem.getClass().getSimpleName();
        }
    }

    private record Branch(byte[] id) implements Xid {
        Branch(String id) {
            this(id.getBytes());
        }

        public int getFormatId() {
            return 7;
        }

        public byte[] getGlobalTransactionId() {
            return id;
        }

        public byte[] getBranchQualifier() {
            return new byte[] {1};
        }
    }

    private static XASession xa() throws Exception {
        XAConnectionFactory factory = new XAConnectionFactory();
        factory.setProperty(ConnectionConfiguration.imqAddressList, address);
        XAConnection connection = factory.createXAConnection();
        connection.start();
        OPEN.add(connection);
        return connection.createXASession();
    }

    private static boolean listed(XAResource resource, Branch branch) throws XAException {
        return Arrays.stream(resource.recover(XAResource.TMSTARTRSCAN | XAResource.TMENDRSCAN))
                .anyMatch(one -> Arrays.equals(one.getGlobalTransactionId(), branch.id()));
    }

    // --- connections and sessions ----------------------------------------------------------

    private static void connections() {
        CASES.put("client id twice", () -> {
            client("twice");
            return failure(() -> client("twice"));
        });
        CASES.put("client id after use", () -> {
            Connection connection = factory().createConnection();
            OPEN.add(connection);
            connection.createSession(false, 1);
            return failure(() -> {
                connection.setClientID("late");
                return "set";
            });
        });
        CASES.put("client id free again", () -> {
            client("again").close();
            return client("again").getClientID();
        });
        CASES.put("wrong password", () -> failure(() -> factory().createConnection("guest", "wrong")));
        CASES.put("stopped connection", () -> {
            Connection connection = connect();
            Session in = connection.createSession(false, 1);
            MessageConsumer consumer = in.createConsumer(queue(in));
            connection.stop();
            Session out = session();
            send(out, queue(out), "a");
            String held = text(consumer.receive(NONE));
            connection.start();
            return held + " " + text(consumer.receive(LONG));
        });
        CASES.put("never started", () -> {
            Connection connection = factory().createConnection();
            OPEN.add(connection);
            Session in = connection.createSession(false, 1);
            MessageConsumer consumer = in.createConsumer(queue(in));
            send(in, queue(in), "a");
            return text(consumer.receive(NONE));
        });
        CASES.put("closed connection", () -> {
            Connection connection = connect();
            connection.close();
            connection.close();
            return failure(() -> connection.createSession(false, 1));
        });
        CASES.put("closed session", () -> {
            Session session = session();
            session.close();
            return failure(() -> queue(session));
        });
        CASES.put("closing gives back", () -> {
            Session out = session();
            send(out, queue(out), "a", "b");
            Session in = session(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer first = in.createConsumer(queue(in));
            String before = seen(first.receive(LONG));
            in.close();
            MessageConsumer second = out.createConsumer(queue(out));
            return before + ", " + seen(second.receive(LONG)) + ", " + seen(second.receive(LONG));
        });
    }

    private static void acknowledgements() {
        CASES.put("auto", () -> {
            Session out = session();
            send(out, queue(out), "a");
            Session in = session();
            String first = seen(in.createConsumer(queue(in)).receive(LONG));
            in.close();
            return first + ", " + text(out.createConsumer(queue(out)).receive(NONE));
        });
        CASES.put("duplicates allowed", () -> {
            Session out = session();
            send(out, queue(out), "a", "b");
            Session in = session(Session.DUPS_OK_ACKNOWLEDGE);
            List<String> texts = all(in.createConsumer(queue(in)), 2);
            in.close();
            return texts + " " + text(out.createConsumer(queue(out)).receive(NONE));
        });
        CASES.put("no acknowledgement", () -> {
            com.sun.messaging.jms.Connection connection = (com.sun.messaging.jms.Connection) connect();
            Session in = connection.createSession(com.sun.messaging.jms.Session.NO_ACKNOWLEDGE);
            MessageConsumer consumer = in.createConsumer(queue(in));
            Session out = session();
            send(out, queue(out), "a", "b");
            List<String> texts = all(consumer, 2);
            in.close();
            return texts + " " + text(out.createConsumer(queue(out)).receive(NONE));
        });
        CASES.put("client, all before", () -> {
            Session out = session();
            send(out, queue(out), "a", "b", "c");
            Session in = session(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = in.createConsumer(queue(in));
            consumer.receive(LONG);
            consumer.receive(LONG).acknowledge();
            in.close();
            MessageConsumer rest = out.createConsumer(queue(out));
            return text(rest.receive(LONG)) + " " + text(rest.receive(NONE));
        });
        CASES.put("client, an earlier one acknowledges later ones", () -> {
            Session out = session();
            send(out, queue(out), "a", "b");
            Session in = session(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = in.createConsumer(queue(in));
            Message first = consumer.receive(LONG);
            consumer.receive(LONG);
            first.acknowledge();
            in.close();
            return text(out.createConsumer(queue(out)).receive(NONE));
        });
        CASES.put("recover", () -> {
            Session in = session(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = in.createConsumer(queue(in));
            send(in, queue(in), "a", "b", "c");
            consumer.receive(LONG);
            consumer.receive(LONG);
            in.recover();
            String again = seen(consumer.receive(LONG)) + ", " + seen(consumer.receive(LONG));
            Message last = consumer.receive(LONG);
            last.acknowledge();
            return again + ", " + seen(last) + ", " + text(consumer.receive(NONE));
        });
        CASES.put("recover of a topic", () -> {
            Session in = session(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = in.createConsumer(topic(in));
            send(in, topic(in), "a", "b");
            consumer.receive(LONG);
            in.recover();
            return seen(consumer.receive(LONG)) + ", " + seen(consumer.receive(LONG));
        });
        CASES.put("recover of a transacted session",
                () -> failure(() -> {
                    session(Session.SESSION_TRANSACTED).recover();
                    return "recovered";
                }));
        CASES.put("commit of a session without", () -> failure(() -> {
            session().commit();
            return "committed";
        }));
    }

    private static void transactions() {
        CASES.put("sent before commit", () -> {
            Session out = session(Session.SESSION_TRANSACTED);
            Session in = session();
            MessageConsumer consumer = in.createConsumer(queue(in));
            send(out, queue(out), "a", "b");
            String before = text(consumer.receive(NONE));
            out.commit();
            return before + " " + all(consumer, 2);
        });
        CASES.put("sent and rolled back", () -> {
            Session out = session(Session.SESSION_TRANSACTED);
            send(out, queue(out), "a");
            out.rollback();
            send(out, queue(out), "b");
            out.commit();
            Session in = session();
            return all(in.createConsumer(queue(in)), 1);
        });
        CASES.put("received and rolled back", () -> {
            Session in = session(Session.SESSION_TRANSACTED);
            MessageConsumer consumer = in.createConsumer(queue(in));
            send(session(), queue(in), "a", "b");
            List<String> tries = new ArrayList<>();
            for (int attempt = 0; attempt < 3; attempt++) {
                tries.add(seen(consumer.receive(LONG)));
                in.rollback();
            }
            tries.add(seen(consumer.receive(LONG)));
            tries.add(seen(consumer.receive(LONG)));
            in.commit();
            return tries + " " + text(consumer.receive(NONE));
        });
        CASES.put("rolled back by the end of its connection", () -> {
            Connection connection = connect();
            Session in = connection.createSession(true, 0);
            Session out = session();
            send(out, queue(out), "a");
            in.createConsumer(queue(in)).receive(LONG);
            send(in, in.createQueue(name + "2"), "never");
            connection.close();
            return seen(out.createConsumer(queue(out)).receive(LONG)) + ", "
                    + text(out.createConsumer(out.createQueue(name + "2")).receive(NONE));
        });
        CASES.put("queue and topic in one", () -> {
            Session both = session(Session.SESSION_TRANSACTED);
            Session in = session();
            MessageConsumer subscriber = in.createConsumer(topic(in));
            MessageConsumer receiver = in.createConsumer(queue(in));
            send(both, queue(both), "q");
            send(both, topic(both), "t");
            String before = text(subscriber.receive(NONE));
            both.commit();
            return before + " " + text(subscriber.receive(LONG)) + " " + text(receiver.receive(LONG));
        });
        CASES.put("order over sessions of one connection", () -> {
            Connection connection = connect();
            Session one = connection.createSession(true, 0);
            Session two = connection.createSession(true, 0);
            send(one, queue(one), "a1");
            send(two, queue(two), "b1");
            send(one, queue(one), "a2");
            two.commit();
            one.commit();
            Session in = session();
            return all(in.createConsumer(queue(in)), 3);
        });
        CASES.put("expired in a transaction", () -> {
            Session out = session(Session.SESSION_TRANSACTED);
            MessageProducer producer = out.createProducer(queue(out));
            producer.setTimeToLive(100);
            producer.send(out.createTextMessage("late"));
            Thread.sleep(400);
            out.commit();
            Session in = session();
            return text(in.createConsumer(queue(in)).receive(NONE));
        });
    }

    private static void distributed() {
        CASES.put("xa two phases", () -> {
            XASession session = xa();
            XAResource resource = session.getXAResource();
            Branch branch = new Branch(name);
            Session in = session();
            MessageConsumer consumer = in.createConsumer(queue(in));
            resource.start(branch, XAResource.TMNOFLAGS);
            send(session, queue(session), "a");
            resource.end(branch, XAResource.TMSUCCESS);
            int vote = resource.prepare(branch);
            String before = text(consumer.receive(NONE));
            boolean known = listed(resource, branch);
            resource.commit(branch, false);
            return vote + " " + before + " " + known + " " + text(consumer.receive(LONG)) + " "
                    + listed(resource, branch);
        });
        CASES.put("xa one phase", () -> {
            XASession session = xa();
            XAResource resource = session.getXAResource();
            Branch branch = new Branch(name);
            resource.start(branch, XAResource.TMNOFLAGS);
            send(session, queue(session), "a");
            resource.end(branch, XAResource.TMSUCCESS);
            resource.commit(branch, true);
            Session in = session();
            return text(in.createConsumer(queue(in)).receive(LONG));
        });
        CASES.put("xa prepared and rolled back", () -> {
            Session out = session();
            send(out, queue(out), "a");
            XASession session = xa();
            XAResource resource = session.getXAResource();
            Branch branch = new Branch(name);
            MessageConsumer consumer = session.createConsumer(queue(session));
            resource.start(branch, XAResource.TMNOFLAGS);
            String got = seen(consumer.receive(LONG));
            resource.end(branch, XAResource.TMSUCCESS);
            resource.prepare(branch);
            resource.rollback(branch);
            session.close();
            return got + ", " + seen(out.createConsumer(queue(out)).receive(LONG));
        });
        CASES.put("xa of nobody", () -> {
            XAResource resource = xa().getXAResource();
            Branch branch = new Branch(name);
            return failure(() -> {
                resource.commit(branch, false);
                return "done";
            }) + ", " + failure(() -> {
                resource.rollback(branch);
                return "done";
            }) + ", " + failure(() -> resource.prepare(branch));
        });
        CASES.put("xa failed", () -> {
            XASession session = xa();
            XAResource resource = session.getXAResource();
            Branch branch = new Branch(name);
            resource.start(branch, XAResource.TMNOFLAGS);
            send(session, queue(session), "a");
            resource.end(branch, XAResource.TMFAIL);
            String vote = failure(() -> resource.prepare(branch));
            String undone = failure(() -> {
                resource.rollback(branch);
                return "rolled back";
            });
            Session in = session();
            return vote.split(" ")[0] + ", " + undone + ", "
                    + text(in.createConsumer(queue(in)).receive(NONE));
        });
        CASES.put("xa suspended and resumed", () -> {
            XASession session = xa();
            XAResource resource = session.getXAResource();
            Branch branch = new Branch(name);
            resource.start(branch, XAResource.TMNOFLAGS);
            send(session, queue(session), "a");
            resource.end(branch, XAResource.TMSUSPEND);
            resource.start(branch, XAResource.TMRESUME);
            send(session, queue(session), "b");
            resource.end(branch, XAResource.TMSUCCESS);
            resource.prepare(branch);
            resource.commit(branch, false);
            Session in = session();
            return all(in.createConsumer(queue(in)), 2);
        });
    }

    // --- producers and messages ------------------------------------------------------------

    private static void headers() {
        CASES.put("headers that send sets", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MessageProducer producer = session.createProducer(queue(session));
            Message sent = session.createTextMessage("a");
            sent.setJMSPriority(9);
            sent.setJMSExpiration(77);
            long before = System.currentTimeMillis();
            producer.send(sent, DeliveryMode.NON_PERSISTENT, 7, 60_000);
            Message got = consumer.receive(LONG);
            long life = got.getJMSExpiration() - got.getJMSTimestamp();
            return got.getJMSDeliveryMode() + " " + got.getJMSPriority() + " "
                    + (life > 59_000 && life <= 60_000) + " "
                    + got.getJMSMessageID().startsWith("ID:") + " "
                    + got.getJMSMessageID().equals(sent.getJMSMessageID()) + " "
                    + (Math.abs(got.getJMSTimestamp() - before) < 5000) + " "
                    + ((Queue) got.getJMSDestination()).getQueueName() + " " + got.getJMSRedelivered() + " "
                    + (got.getJMSDeliveryTime() == got.getJMSTimestamp());
        });
        CASES.put("headers of the program", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            Message sent = session.createTextMessage("a");
            sent.setJMSCorrelationID("order 7");
            sent.setJMSType("Bestellung \u00e4");
            sent.setJMSReplyTo(session.createTopic(name + "replies"));
            session.createProducer(queue(session)).send(sent);
            Message got = consumer.receive(LONG);
            return got.getJMSCorrelationID() + ", " + got.getJMSType() + ", "
                    + ((Topic) got.getJMSReplyTo()).getTopicName();
        });
        CASES.put("correlation id of bytes", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            Message sent = session.createMessage();
            return failure(() -> {
                sent.setJMSCorrelationIDAsBytes(new byte[] {1, 2, 3});
                session.createProducer(queue(session)).send(sent);
                return Arrays.toString(consumer.receive(LONG).getJMSCorrelationIDAsBytes());
            });
        });
        CASES.put("properties of each type", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            Message sent = session.createMessage();
            sent.setBooleanProperty("z", true);
            sent.setByteProperty("b", (byte) -7);
            sent.setShortProperty("s", (short) 300);
            sent.setIntProperty("i", -70000);
            sent.setLongProperty("l", 1L << 40);
            sent.setFloatProperty("f", 1.5f);
            sent.setDoubleProperty("d", -2.25);
            sent.setStringProperty("t", "gr\u00fcn \ud83d\ude00");
            session.createProducer(queue(session)).send(sent);
            Message got = consumer.receive(LONG);
            List<String> shown = new ArrayList<>();
            for (Object key : Collections.list(got.getPropertyNames())) {
                Object value = got.getObjectProperty((String) key);
                String kind = value == null ? "" : value.getClass().getSimpleName();
                if (!((String) key).startsWith("JMS")) {
                    shown.add(key + "=" + value + " " + kind);
                }
            }
            Collections.sort(shown);
            return shown + " " + failure(() -> {
                got.setIntProperty("x", 1);
                return "writable";
            });
        });
        CASES.put("group of messages", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            Message sent = session.createMessage();
            sent.setStringProperty("JMSXGroupID", "g");
            sent.setIntProperty("JMSXGroupSeq", 3);
            session.createProducer(queue(session)).send(sent);
            Message got = consumer.receive(LONG);
            return got.getStringProperty("JMSXGroupID") + " " + got.getIntProperty("JMSXGroupSeq");
        });
        CASES.put("user id", () -> {
            Session session = connect(ConnectionConfiguration.imqSetJMSXUserID, "true",
                    ConnectionConfiguration.imqSetJMSXAppID, "true",
                    ConnectionConfiguration.imqSetJMSXRcvTimestamp, "true").createSession(false, 1);
            MessageConsumer consumer = session.createConsumer(queue(session));
            send(session, queue(session), "a");
            Message got = consumer.receive(LONG);
            return got.getStringProperty("JMSXUserID") + " "
                    + (got.getStringProperty("JMSXAppID") != null) + " "
                    + got.propertyExists("JMSXRcvTimestamp");
        });
        CASES.put("the same message twice", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MessageProducer producer = session.createProducer(queue(session));
            TextMessage sent = session.createTextMessage("a");
            producer.send(sent);
            String first = sent.getJMSMessageID();
            sent.setText("b");
            producer.send(sent);
            return all(consumer, 2) + " " + first.equals(sent.getJMSMessageID());
        });
        CASES.put("a received message is sent on", () -> {
            Session session = session();
            send(session, queue(session), "a");
            Message got = session.createConsumer(queue(session)).receive(LONG);
            Queue next = session.createQueue(name + "next");
            session.createProducer(next).send(got);
            Message last = session.createConsumer(next).receive(LONG);
            return seen(last) + " " + ((Queue) last.getJMSDestination()).getQueueName();
        });
    }

    private static void bodies() {
        CASES.put("texts", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MessageProducer producer = session.createProducer(queue(session));
            List<String> texts = new ArrayList<>();
            for (String one : new String[] {null, "", "a\u0000b", "\u00e4\u20ac\ud83d\ude00"}) {
                producer.send(session.createTextMessage(one));
                String got = ((TextMessage) consumer.receive(LONG)).getText();
                texts.add(got == null ? null : got.replace('\u0000', '0'));
            }
            return texts;
        });
        CASES.put("bytes", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            BytesMessage sent = session.createBytesMessage();
            sent.writeUTF("\u00e4");
            sent.writeLong(-1);
            sent.writeChar('x');
            session.createProducer(queue(session)).send(sent);
            BytesMessage got = (BytesMessage) consumer.receive(LONG);
            return got.getBodyLength() + " " + got.readUTF() + " " + got.readLong() + " "
                    + got.readChar() + " " + failure(got::readByte);
        });
        CASES.put("map", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MapMessage sent = session.createMapMessage();
            sent.setInt("i", 5);
            sent.setString("s", null);
            sent.setBytes("b", new byte[] {9});
            sent.setChar("c", 'z');
            sent.setDouble("d", Double.NaN);
            session.createProducer(queue(session)).send(sent);
            MapMessage got = (MapMessage) consumer.receive(LONG);
            return got.getInt("i") + " " + got.getString("s") + " " + got.getBytes("b").length + " "
                    + got.getChar("c") + " " + got.getDouble("d") + " "
                    + Collections.list(got.getMapNames()).size();
        });
        CASES.put("stream", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            StreamMessage sent = session.createStreamMessage();
            sent.writeShort((short) 3);
            sent.writeObject(null);
            sent.writeString("x");
            session.createProducer(queue(session)).send(sent);
            StreamMessage got = (StreamMessage) consumer.receive(LONG);
            return got.readShort() + " " + got.readObject() + " " + got.readString() + " "
                    + failure(got::readInt);
        });
        CASES.put("object", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            ObjectMessage sent = session.createObjectMessage(new ArrayList<>(List.of(1, 2)));
            session.createProducer(queue(session)).send(sent);
            return ((ObjectMessage) consumer.receive(LONG)).getObject();
        });
        CASES.put("a large one, compressed", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            BytesMessage sent = session.createBytesMessage();
            sent.writeBytes(new byte[1 << 20]);
            sent.setBooleanProperty("JMS_SUN_COMPRESS", true);
            session.createProducer(queue(session)).send(sent);
            BytesMessage got = (BytesMessage) consumer.receive(LONG);
            return got.getBodyLength() + " " + got.getIntProperty("JMS_SUN_UNCOMPRESSED_SIZE");
        });
        CASES.put("two large ones, not compressed", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MessageProducer producer = session.createProducer(queue(session));
            long sum = 0;
            for (int number = 0; number < 2; number++) {
                BytesMessage sent = session.createBytesMessage();
                sent.writeBytes(new byte[3 << 20]);
                producer.send(sent);
                sum += ((BytesMessage) consumer.receive(LONG)).getBodyLength();
            }
            return sum;
        });
    }

    private static void sending() {
        CASES.put("producer without destination", () -> {
            Session session = session();
            MessageProducer producer = session.createProducer(null);
            String unnamed = failure(() -> {
                producer.send(session.createMessage());
                return "sent";
            });
            producer.send(queue(session), session.createTextMessage("a"));
            return unnamed + " " + text(session.createConsumer(queue(session)).receive(LONG));
        });
        CASES.put("priorities", () -> {
            Session session = session();
            MessageProducer producer = session.createProducer(queue(session));
            int[] priorities = {4, 0, 9, 5, 9, 3};
            for (int number = 0; number < priorities.length; number++) {
                producer.send(session.createTextMessage(priorities[number] + "." + number), 1,
                        priorities[number], 0);
            }
            return all(session.createConsumer(queue(session)), priorities.length);
        });
        CASES.put("time to live", () -> {
            Session session = session();
            MessageProducer producer = session.createProducer(queue(session));
            producer.send(session.createTextMessage("short"), 1, 4, 100);
            producer.send(session.createTextMessage("long"), 1, 4, 60_000);
            Thread.sleep(400);
            return all(session.createConsumer(queue(session)), 1);
        });
        CASES.put("expired messages are dead", () -> {
            Session session = session();
            MessageConsumer dead = session.createConsumer(session.createQueue("mq.sys.dmq"));
            while (dead.receive(NONE) != null) {
                continue;
            }
            MessageProducer producer = session.createProducer(queue(session));
            producer.send(session.createTextMessage("kept"), 1, 4, 100);
            Message unwanted = session.createTextMessage("not kept");
            unwanted.setBooleanProperty("JMS_SUN_PRESERVE_UNDELIVERED", false);
            producer.send(unwanted, 1, 4, 100);
            Thread.sleep(400);
            session.createConsumer(queue(session)).receive(NONE);
            Message got = dead.receive(LONG);
            return text(got) + " " + got.getStringProperty("JMS_SUN_DMQ_UNDELIVERED_REASON") + " "
                    + ((Queue) got.getJMSDestination()).getQueueName() + " " + text(dead.receive(NONE));
        });
        CASES.put("delivery delay", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MessageProducer producer = session.createProducer(queue(session));
            producer.setDeliveryDelay(700);
            producer.send(session.createTextMessage("late"));
            producer.setDeliveryDelay(0);
            producer.send(session.createTextMessage("now"));
            String first = text(consumer.receive(LONG));
            String early = text(consumer.receive(NONE));
            Message late = consumer.receive(LONG);
            return first + " " + early + " " + text(late) + " "
                    + (late.getJMSDeliveryTime() - late.getJMSTimestamp());
        });
        CASES.put("delivery delay longer than life", () -> {
            Session session = session();
            MessageProducer producer = session.createProducer(queue(session));
            producer.setDeliveryDelay(2000);
            producer.setTimeToLive(500);
            return failure(() -> {
                producer.send(session.createTextMessage("never"));
                return "sent";
            });
        });
        CASES.put("delayed to a durable subscriber", () -> {
            Session in = client("delayed").createSession(false, 1);
            MessageConsumer consumer = in.createDurableConsumer(topic(in), "d");
            Session out = session();
            MessageProducer producer = out.createProducer(topic(out));
            producer.setDeliveryDelay(500);
            producer.send(out.createTextMessage("a"));
            String got = text(consumer.receive(100)) + " " + text(consumer.receive(LONG));
            consumer.close();
            in.unsubscribe("d");
            return got;
        });
        CASES.put("asynchronous send", () -> {
            Session session = session();
            BlockingQueue<String> done = new LinkedBlockingQueue<>();
            MessageProducer producer = session.createProducer(queue(session));
            for (String one : new String[] {"a", "b"}) {
                producer.send(session.createTextMessage(one), new CompletionListener() {
                    public void onCompletion(Message message) {
                        done.add(one);
                    }

                    public void onException(Message message, Exception problem) {
                        done.add(problem.toString());
                    }
                });
            }
            return done.poll(LONG, TimeUnit.MILLISECONDS) + done.poll(LONG, TimeUnit.MILLISECONDS)
                    + " " + all(session.createConsumer(queue(session)), 2);
        });
        CASES.put("a topic without subscribers", () -> {
            Session session = session();
            send(session, topic(session), "nobody");
            MessageConsumer consumer = session.createConsumer(topic(session));
            send(session, topic(session), "somebody");
            return all(consumer, 1);
        });
        CASES.put("names that are none", () -> {
            Session session = session();
            List<String> results = new ArrayList<>();
            for (String one : new String[] {"", "a b", "1a", "a.b", "mq.sys.x", "\u00e4", "a-b", "_a"}) {
                results.add(failure(() -> {
                    send(session, session.createQueue(one), "x");
                    return "sent";
                }));
            }
            return results;
        });
        CASES.put("wildcards", () -> {
            Session session = session();
            String base = name;
            MessageConsumer star = session.createConsumer(session.createTopic(base + ".*.c"));
            MessageConsumer tail = session.createConsumer(session.createTopic(base + ".**"));
            for (String one : new String[] {".a.c", ".b.c", ".a.d", ".a.b.c", ".x"}) {
                send(session, session.createTopic(base + one), one);
            }
            return all(star, 2) + " " + all(tail, 5);
        });
        CASES.put("publishing to a wildcard", () -> {
            Session session = session();
            String base = name;
            MessageConsumer one = session.createConsumer(session.createTopic(base + ".a"));
            MessageConsumer two = session.createConsumer(session.createTopic(base + ".b"));
            return failure(() -> {
                send(session, session.createTopic(base + ".*"), "x");
                return all(one, 1) + " " + all(two, 1);
            });
        });
    }

    // --- consumers -------------------------------------------------------------------------

    private static final String[] SELECTORS = {
        "n = 3", "n <> 3", "n > 2", "n >= 2 AND n < 4", "NOT n > 2", "n BETWEEN 2 AND 3",
        "n NOT BETWEEN 2 AND 3", "color IN ('red', 'blue')", "color NOT IN ('red')",
        "color LIKE 'r%'", "color LIKE '_lue'", "color NOT LIKE '%e%'", "color IS NULL",
        "color IS NOT NULL", "color = 'red' OR n = 4", "n + 1 = 4", "n * 2 - 1 > 5", "-n = -3",
        "n / 2 = 1.5", "f > 1.4 AND f < 1.6", "flag", "flag = TRUE", "NOT flag", "flag = FALSE",
        "missing = 1", "NOT (missing = 1)", "missing IS NULL", "JMSPriority >= 4", "JMSType = 'kind'",
        "JMSDeliveryMode = 'PERSISTENT'", "JMSDeliveryMode = 'NON_PERSISTENT'",
        "JMSCorrelationID = 'c2'", "text LIKE '100\\%' ESCAPE '\\'", "text = 'it''s'", "n = 3.0",
        "n = 3L", "n = 0x3", "n = 1E0", "color = 3", "n = '3'", "(n = 1 OR n = 2) AND color = 'red'",
        "n = 1 or n = 2 and color = 'blue'", "JMSTimestamp > 0", "color < 'z'", "n BETWEEN 3 AND 2",
        "text LIKE 'it_s'", "$a = 1", "_b = 2", "TRUE", "n=1or n=2", "color like 'R%'", "N = 1",
        "JMSXGroupID = 'g'", "JMSMessageID LIKE 'ID:%'", "JMSRedelivered = FALSE", "",
        "1 = 1", "n IN (1, 2)", "n = ", "n == 1", "LIKE", "color LIKE 3", "n BETWEEN 1", "'a' = 'a'",
        "color IN ()", "n = 1 AND", "((n = 1)", "color = \"red\"", "n + color = 1", "NULL = n",
        "color = 'red' AND AND n = 1", "AND n = 1", "n IS 1", "flag AND n = 1", "flag = 'true'",
        "n IN ('3')", "n NOT IN ('3')", "n NOT LIKE '3'", "NOT (n LIKE '3')", "NOT (n IN ('3'))",
        "color NOT BETWEEN 1 AND 2", "NOT (color = n)", "color <> n", "NOT (n = flag)",
    };

    private static void selected() {
        CASES.put("selectors", () -> {
            Session session = session();
            MessageProducer producer = session.createProducer(queue(session));
            String[] colors = {"red", "blue", "green", null};
            for (int number = 1; number <= 4; number++) {
                TextMessage message = session.createTextMessage("" + number);
                message.setIntProperty("n", number);
                message.setFloatProperty("f", number / 2f);
                message.setBooleanProperty("flag", number % 2 == 1);
                message.setStringProperty("text", number == 1 ? "100%" : number == 2 ? "it's" : "100x");
                message.setIntProperty(number < 3 ? "$a" : "_b", number < 3 ? 1 : 2);
                if (colors[number - 1] != null) {
                    message.setStringProperty("color", colors[number - 1]);
                }
                message.setJMSType(number == 2 ? "kind" : null);
                message.setJMSCorrelationID("c" + number);
                message.setStringProperty("JMSXGroupID", number == 4 ? "g" : "h");
                producer.send(message, number % 2 + 1, number * 2 - 1, 0);
            }
            StringBuilder shown = new StringBuilder();
            for (String one : SELECTORS) {
                shown.append("\n  ").append(one).append(" -> ").append(failure(() -> {
                    QueueBrowser browser = session.createBrowser(queue(session), one);
                    List<String> texts = browse(browser);
                    browser.close();
                    Collections.sort(texts);
                    return texts;
                }));
            }
            return shown;
        });
        CASES.put("selector of a consumer", () -> {
            Session session = session();
            MessageProducer producer = session.createProducer(queue(session));
            for (int number = 0; number < 4; number++) {
                Message message = session.createTextMessage("" + number);
                message.setIntProperty("n", number);
                producer.send(message);
            }
            MessageConsumer odd = session.createConsumer(queue(session), "n = 1 OR n = 3");
            List<String> first = all(odd, 2);
            odd.close();
            return first + " " + all(session.createConsumer(queue(session)), 2);
        });
        CASES.put("no local", () -> {
            Connection connection = connect();
            Session session = connection.createSession(false, 1);
            MessageConsumer consumer = session.createConsumer(topic(session), null, true);
            send(session, topic(session), "own");
            Session other = session();
            send(other, topic(other), "other");
            return all(consumer, 1);
        });
        CASES.put("no local of another session", () -> {
            Connection connection = connect();
            Session session = connection.createSession(false, 1);
            MessageConsumer consumer = session.createConsumer(topic(session), null, true);
            Session same = connection.createSession(false, 1);
            send(same, topic(same), "own");
            return text(consumer.receive(NONE));
        });
    }

    private static void queues() {
        CASES.put("each message to one receiver", () -> {
            Session one = session();
            Session two = session();
            MessageConsumer first = one.createConsumer(queue(one));
            MessageConsumer second = two.createConsumer(queue(two));
            Session out = session();
            send(out, queue(out), 1, 2, 3, 4, 5, 6);
            List<String> texts = all(first, 1);
            boolean both = !texts.isEmpty();
            List<String> others = all(second, 1);
            both &= !others.isEmpty();
            texts.addAll(others);
            Collections.sort(texts);
            return texts + " " + both;
        });
        CASES.put("closing a receiver gives back what it did not read", () -> {
            Session out = session();
            send(out, queue(out), "a", "b", "c");
            Session in = session();
            MessageConsumer first = in.createConsumer(queue(in));
            String got = text(first.receive(LONG));
            first.close();
            return got + " " + all(out.createConsumer(queue(out)), 2);
        });
        CASES.put("browser", () -> {
            Session session = session();
            send(session, queue(session), "a", "b");
            QueueBrowser browser = session.createBrowser(queue(session));
            List<String> first = browse(browser);
            List<String> again = browse(browser);
            browser.close();
            return first + " " + again + " " + all(session.createConsumer(queue(session)), 2) + " "
                    + browse(session.createBrowser(queue(session)));
        });
        CASES.put("browser with a selector", () -> {
            Session session = session();
            MessageProducer producer = session.createProducer(queue(session));
            for (int number = 0; number < 3; number++) {
                Message message = session.createTextMessage("" + number);
                message.setIntProperty("n", number);
                producer.send(message, 1, 4, number == 2 ? 100 : 0);
            }
            Thread.sleep(400);
            return browse(session.createBrowser(queue(session), "n > 0"));
        });
        CASES.put("browser of what is being read", () -> {
            Session in = session(Session.CLIENT_ACKNOWLEDGE);
            send(in, queue(in), "a", "b");
            MessageConsumer consumer = in.createConsumer(queue(in));
            Message first = consumer.receive(LONG);
            Session session = session();
            int before = browse(session.createBrowser(queue(session))).size();
            first.acknowledge();
            consumer.close();
            return before + " " + browse(session.createBrowser(queue(session)));
        });
        CASES.put("two receivers with selectors", () -> {
            Session session = session();
            MessageConsumer even = session.createConsumer(queue(session), "n = 0 OR n = 2");
            MessageConsumer odd = session.createConsumer(queue(session), "n = 1 OR n = 3");
            MessageProducer producer = session.createProducer(queue(session));
            for (int number = 0; number < 4; number++) {
                Message message = session.createTextMessage("" + number);
                message.setIntProperty("n", number);
                producer.send(message);
            }
            return all(odd, 2) + " " + all(even, 2);
        });
        CASES.put("transacted listener", () -> {
            Session in = session(Session.SESSION_TRANSACTED);
            BlockingQueue<String> got = new LinkedBlockingQueue<>();
            in.createConsumer(queue(in)).setMessageListener(one -> {
                try {
                    got.add(seen(one));
                    if (one.getJMSRedelivered()) {
                        in.commit();
                    } else {
                        in.rollback();
                    }
                } catch (JMSException problem) {
                    got.add(problem.toString());
                }
            });
            Session out = session();
            send(out, queue(out), "a");
            return got.poll(LONG, TimeUnit.MILLISECONDS) + ", "
                    + got.poll(LONG, TimeUnit.MILLISECONDS) + ", "
                    + got.poll(NONE, TimeUnit.MILLISECONDS);
        });
        CASES.put("listener", () -> {
            Session session = session();
            BlockingQueue<String> got = new LinkedBlockingQueue<>();
            session.createConsumer(queue(session)).setMessageListener(one -> {
                try {
                    got.add(text(one));
                } catch (JMSException problem) {
                    got.add(problem.toString());
                }
            });
            Session out = session();
            send(out, queue(out), "a", "b");
            return got.poll(LONG, TimeUnit.MILLISECONDS) + got.poll(LONG, TimeUnit.MILLISECONDS);
        });
        CASES.put("listener that throws", () -> {
            Session session = session();
            BlockingQueue<String> got = new LinkedBlockingQueue<>();
            int[] calls = {0};
            session.createConsumer(queue(session)).setMessageListener(one -> {
                try {
                    got.add(seen(one));
                } catch (JMSException problem) {
                    got.add(problem.toString());
                }
                if (++calls[0] == 1) {
                    throw new IllegalStateException("on purpose");
                }
            });
            Session out = session();
            send(out, queue(out), "a");
            return got.poll(LONG, TimeUnit.MILLISECONDS) + ", "
                    + got.poll(LONG, TimeUnit.MILLISECONDS);
        });
        CASES.put("receive without waiting", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            String empty = text(consumer.receiveNoWait());
            send(session, queue(session), "a");
            Thread.sleep(300);
            return empty + " " + text(consumer.receiveNoWait());
        });
        CASES.put("many messages in order", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MessageProducer producer = session.createProducer(queue(session));
            producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
            for (int number = 0; number < 1500; number++) {
                producer.send(session.createTextMessage("" + number));
            }
            for (int number = 0; number < 1500; number++) {
                if (!text(consumer.receive(LONG)).equals("" + number)) {
                    return "out of order at " + number;
                }
            }
            return "in order";
        });
    }

    private static void topics() {
        CASES.put("a copy for each subscriber", () -> {
            Session one = session();
            Session two = session();
            MessageConsumer first = one.createConsumer(topic(one));
            MessageConsumer second = two.createConsumer(topic(two));
            MessageConsumer third = two.createConsumer(topic(two));
            send(one, topic(one), "a", "b");
            return all(first, 2) + " " + all(second, 2) + " " + all(third, 2);
        });
        CASES.put("a subscriber that is stopped", () -> {
            Connection connection = connect();
            Session in = connection.createSession(false, 1);
            MessageConsumer consumer = in.createConsumer(topic(in));
            connection.stop();
            Session out = session();
            send(out, topic(out), "a");
            String held = text(consumer.receive(NONE));
            connection.start();
            return held + " " + text(consumer.receive(LONG));
        });
        CASES.put("a queue and a topic of one name", () -> {
            Session session = session();
            MessageConsumer subscriber = session.createConsumer(topic(session));
            MessageConsumer receiver = session.createConsumer(queue(session));
            send(session, queue(session), "q");
            send(session, topic(session), "t");
            return all(subscriber, 1) + " " + all(receiver, 1);
        });
        CASES.put("durable, with a selector", () -> {
            Session in = client("chosen").createSession(false, 1);
            in.createDurableConsumer(topic(in), "s", "n > 1", false).close();
            Session out = session();
            MessageProducer producer = out.createProducer(topic(out));
            for (int number = 0; number < 4; number++) {
                Message message = out.createTextMessage("" + number);
                message.setIntProperty("n", number);
                producer.send(message);
            }
            MessageConsumer consumer = in.createDurableConsumer(topic(in), "s", "n > 1", false);
            List<String> texts = all(consumer, 2);
            consumer.close();
            in.unsubscribe("s");
            return texts;
        });
        CASES.put("durable, expired while it is away", () -> {
            Session in = client("late").createSession(false, 1);
            in.createDurableConsumer(topic(in), "s").close();
            Session out = session();
            MessageProducer producer = out.createProducer(topic(out));
            producer.send(out.createTextMessage("short"), 2, 4, 100);
            producer.send(out.createTextMessage("long"), 2, 4, 60_000);
            Thread.sleep(400);
            MessageConsumer consumer = in.createDurableConsumer(topic(in), "s");
            List<String> texts = all(consumer, 1);
            consumer.close();
            in.unsubscribe("s");
            return texts;
        });
        CASES.put("durable, not acknowledged", () -> {
            Connection connection = client("unsure");
            Session in = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = in.createDurableConsumer(topic(in), "s");
            send(in, topic(in), "a", "b");
            consumer.receive(LONG).acknowledge();
            consumer.receive(LONG);
            connection.close();
            Session back = client("unsure").createSession(false, 1);
            MessageConsumer second = back.createDurableConsumer(topic(back), "s");
            String got = seen(second.receive(LONG)) + ", " + text(second.receive(NONE));
            second.close();
            back.unsubscribe("s");
            return got;
        });
        CASES.put("durable, rolled back", () -> {
            Session in = client("undone").createSession(true, 0);
            MessageConsumer consumer = in.createDurableConsumer(topic(in), "s");
            Session out = session();
            send(out, topic(out), "a");
            String first = seen(consumer.receive(LONG));
            in.rollback();
            String second = seen(consumer.receive(LONG));
            in.commit();
            consumer.close();
            in.unsubscribe("s");
            return first + ", " + second;
        });
    }

    private static void subscriptions() {
        CASES.put("durable, while it is away", () -> {
            Connection connection = client("away");
            Session in = connection.createSession(false, 1);
            in.createDurableSubscriber(topic(in), "s");
            Session out = session();
            send(out, topic(out), "a");
            connection.close();
            send(out, topic(out), "b");
            Session back = client("away").createSession(false, 1);
            MessageConsumer consumer = back.createDurableSubscriber(topic(back), "s");
            List<String> texts = all(consumer, 2);
            consumer.close();
            back.unsubscribe("s");
            send(out, topic(out), "c");
            MessageConsumer anew = back.createDurableSubscriber(topic(back), "s");
            String none = text(anew.receive(NONE));
            anew.close();
            back.unsubscribe("s");
            return texts + " " + none;
        });
        CASES.put("durable, twice active", () -> {
            Connection connection = client("active");
            Session in = connection.createSession(false, 1);
            MessageConsumer first = in.createDurableConsumer(topic(in), "s");
            String second = failure(() -> in.createDurableConsumer(topic(in), "s"));
            String unsubscribed = failure(() -> {
                in.unsubscribe("s");
                return "gone";
            });
            first.close();
            in.unsubscribe("s");
            return second + " " + unsubscribed + " " + failure(() -> {
                in.unsubscribe("s");
                return "gone";
            });
        });
        CASES.put("durable, without client id", () -> {
            Session in = session();
            return failure(() -> in.createDurableConsumer(topic(in), "s"));
        });
        CASES.put("durable, another selector", () -> {
            Session in = client("changed").createSession(false, 1);
            in.createDurableConsumer(topic(in), "s").close();
            Session out = session();
            send(out, topic(out), "a");
            MessageConsumer second = in.createDurableConsumer(topic(in), "s", "n = 1", false);
            String lost = text(second.receive(NONE));
            second.close();
            MessageConsumer third = in.createDurableConsumer(in.createTopic(name + "2"), "s");
            send(out, out.createTopic(name + "2"), "b");
            String got = text(third.receive(LONG));
            third.close();
            in.unsubscribe("s");
            return lost + " " + got;
        });
        CASES.put("durable, no local", () -> {
            Connection connection = client("nolocal");
            Session in = connection.createSession(false, 1);
            MessageConsumer consumer = in.createDurableConsumer(topic(in), "s", null, true);
            send(in, topic(in), "own");
            Session out = session();
            send(out, topic(out), "other");
            List<String> texts = all(consumer, 1);
            consumer.close();
            in.unsubscribe("s");
            return texts;
        });
        CASES.put("shared, each message to one", () -> {
            Session one = session();
            Session two = session();
            MessageConsumer first = one.createSharedConsumer(topic(one), "s");
            MessageConsumer second = two.createSharedConsumer(topic(two), "s");
            MessageConsumer other = two.createSharedConsumer(topic(two), "t");
            Session out = session();
            send(out, topic(out), 1, 2, 3, 4);
            List<String> texts = all(first, 1);
            texts.addAll(all(second, 1));
            Collections.sort(texts);
            return texts + " " + all(other, 4);
        });
        CASES.put("shared, gone with the last", () -> {
            Session in = session();
            in.createSharedConsumer(topic(in), "s").close();
            Session out = session();
            send(out, topic(out), "a");
            return text(in.createSharedConsumer(topic(in), "s").receive(NONE));
        });
        CASES.put("shared, another selector", () -> {
            Session in = session();
            in.createSharedConsumer(topic(in), "s", "n = 1");
            return failure(() -> in.createSharedConsumer(topic(in), "s", "n = 2")) + " "
                    + failure(() -> in.createSharedConsumer(in.createTopic(name + "2"), "s"));
        });
        CASES.put("shared durable", () -> {
            Session one = session();
            Session two = session();
            MessageConsumer first = one.createSharedDurableConsumer(topic(one), name);
            MessageConsumer second = two.createSharedDurableConsumer(topic(two), name);
            first.close();
            second.close();
            Session out = session();
            send(out, topic(out), 1, 2);
            MessageConsumer back = one.createSharedDurableConsumer(topic(one), name);
            List<String> texts = all(back, 2);
            back.close();
            one.unsubscribe(name);
            return texts;
        });
        CASES.put("shared durable and durable of one name", () -> {
            Session in = client("both").createSession(false, 1);
            MessageConsumer shared = in.createSharedDurableConsumer(topic(in), "s");
            String other = failure(() -> in.createDurableConsumer(topic(in), "s"));
            shared.close();
            String later = failure(() -> in.createDurableConsumer(topic(in), "s"));
            in.unsubscribe("s");
            return other + " " + later;
        });
        CASES.put("shared durable, given back by a member that ends", () -> {
            Connection leaving = connect();
            Session one = leaving.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            Session two = session();
            MessageConsumer first = one.createSharedDurableConsumer(topic(one), name);
            Session out = session();
            send(out, topic(out), 1, 2);
            first.receive(LONG);
            MessageConsumer second = two.createSharedDurableConsumer(topic(two), name);
            leaving.close();
            List<String> texts = all(second, 2);
            Collections.sort(texts);
            second.close();
            two.unsubscribe(name);
            return texts;
        });
    }

    private static void temporary() {
        CASES.put("temporary queue of another connection", () -> {
            Session session = session();
            TemporaryQueue mine = session.createTemporaryQueue();
            Session other = session();
            send(other, mine, "a");
            return text(session.createConsumer(mine).receive(LONG)) + " "
                    + failure(() -> other.createConsumer(mine));
        });
        CASES.put("temporary queue in use", () -> {
            Session session = session();
            TemporaryQueue mine = session.createTemporaryQueue();
            MessageConsumer consumer = session.createConsumer(mine);
            String used = failure(() -> {
                mine.delete();
                return "deleted";
            });
            consumer.close();
            mine.delete();
            return used + " " + failure(() -> {
                send(session, mine, "a");
                return "sent";
            });
        });
        CASES.put("temporary queue of a connection that ended", () -> {
            Connection connection = connect();
            TemporaryQueue gone = connection.createSession(false, 1).createTemporaryQueue();
            Session other = session();
            connection.close();
            Thread.sleep(200);
            return failure(() -> {
                send(other, gone, "a");
                return "sent";
            });
        });
        CASES.put("temporary topic", () -> {
            Session session = session();
            TemporaryTopic mine = session.createTemporaryTopic();
            MessageConsumer consumer = session.createConsumer(mine);
            Session other = session();
            send(other, mine, "a");
            return text(consumer.receive(LONG)) + " " + failure(() -> other.createConsumer(mine));
        });
        CASES.put("request and reply", () -> {
            Session server = session();
            server.createConsumer(queue(server)).setMessageListener(one -> {
                try {
                    TextMessage answer = server.createTextMessage("re: " + text(one));
                    answer.setJMSCorrelationID(one.getJMSMessageID());
                    server.createProducer(null).send(one.getJMSReplyTo(), answer);
                } catch (JMSException problem) {
                    throw new IllegalStateException(problem);
                }
            });
            QueueConnection connection = factory().createQueueConnection();
            OPEN.add(connection);
            connection.start();
            QueueSession session = connection.createQueueSession(false, Session.AUTO_ACKNOWLEDGE);
            QueueRequestor requestor = new QueueRequestor(session, queue(session));
            TextMessage question = session.createTextMessage("?");
            Message answer = requestor.request(question);
            return text(answer) + " "
                    + question.getJMSMessageID().equals(answer.getJMSCorrelationID());
        });
    }

    private static void contexts() {
        CASES.put("context", () -> {
            JMSContext context = factory().createContext();
            OPEN.add(context);
            JMSConsumer consumer = context.createConsumer(context.createQueue(name));
            JMSProducer producer = context.createProducer();
            producer.setProperty("n", 1).setPriority(2).setTimeToLive(9000).setJMSType("k");
            producer.send(context.createQueue(name), "a");
            producer.send(context.createQueue(name), Map.of("x", 5));
            producer.send(context.createQueue(name), new byte[] {1, 2});
            return consumer.receiveBody(String.class, LONG) + " "
                    + consumer.receiveBody(Map.class, LONG) + " "
                    + consumer.receiveBody(byte[].class, LONG).length;
        });
        CASES.put("context, wrong body", () -> {
            JMSContext context = factory().createContext();
            OPEN.add(context);
            JMSConsumer consumer = context.createConsumer(context.createQueue(name));
            context.createProducer().send(context.createQueue(name), "a");
            return failure(() -> consumer.receiveBody(Map.class, LONG)) + " "
                    + consumer.receiveBody(String.class, LONG);
        });
        CASES.put("context, transacted", () -> {
            JMSContext context = factory().createContext(JMSContext.SESSION_TRANSACTED);
            OPEN.add(context);
            JMSConsumer consumer = context.createConsumer(context.createQueue(name));
            context.createProducer().send(context.createQueue(name), "a");
            context.rollback();
            context.createProducer().send(context.createQueue(name), "b");
            context.commit();
            Message first = consumer.receive(LONG);
            context.rollback();
            Message again = consumer.receive(LONG);
            context.commit();
            return seen(first) + ", " + seen(again);
        });
        CASES.put("context, client id", () -> {
            JMSContext context = factory().createContext();
            OPEN.add(context);
            context.setClientID("of a context");
            JMSContext second = context.createContext(JMSContext.AUTO_ACKNOWLEDGE);
            OPEN.add(second);
            JMSConsumer consumer = second.createDurableConsumer(second.createTopic(name), "s");
            context.createProducer().send(context.createTopic(name), "a");
            String got = consumer.receiveBody(String.class, LONG);
            consumer.close();
            second.unsubscribe("s");
            return got + " " + failure(() -> {
                JMSContext other = factory().createContext();
                OPEN.add(other);
                other.setClientID("of a context");
                return "set";
            });
        });
        CASES.put("context, acknowledged", () -> {
            JMSContext context = factory().createContext(JMSContext.CLIENT_ACKNOWLEDGE);
            OPEN.add(context);
            JMSConsumer consumer = context.createConsumer(context.createQueue(name));
            context.createProducer().send(context.createQueue(name), "a");
            context.createProducer().send(context.createQueue(name), "b");
            consumer.receive(LONG);
            context.acknowledge();
            consumer.receive(LONG);
            context.recover();
            return seen(consumer.receive(LONG));
        });
    }

    // --- what stands behind the objects ----------------------------------------------------

    private static JMSContext context(int mode) throws JMSException {
        JMSContext context = factory().createContext(mode);
        OPEN.add(context);
        return context;
    }

    private static String done(Done attempt) {
        return failure(() -> {
            attempt.run();
            return "done";
        });
    }

    private interface Done {
        void run() throws Exception;
    }

    private static void conversions() {
        CASES.put("conversions of properties", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            Message sent = session.createMessage();
            for (Object value : new Object[] {
                    true, (byte) 1, (short) 2, 3, 4L, 5.5f, 6.5, "7", "true", "x"}) {
                sent.setObjectProperty("p" + value.toString().replace('.', '_')
                        + value.getClass().getSimpleName(), value);
            }
            session.createProducer(queue(session)).send(sent);
            Message got = consumer.receive(LONG);
            List<String> rows = new ArrayList<>();
            for (Object each : Collections.list(got.getPropertyNames())) {
                String key = (String) each;
                Case[] getters = {
                    () -> got.getBooleanProperty(key), () -> got.getByteProperty(key),
                    () -> got.getShortProperty(key), () -> got.getIntProperty(key),
                    () -> got.getLongProperty(key), () -> got.getFloatProperty(key),
                    () -> got.getDoubleProperty(key), () -> got.getStringProperty(key)};
                List<String> found = new ArrayList<>();
                for (Case getter : getters) {
                    found.add(failure(getter).replaceAll("(.).*Exception", "$1"));
                }
                rows.add(key.substring(1) + found);
            }
            Collections.sort(rows);
            return rows;
        });
        CASES.put("conversions of map entries", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MapMessage sent = session.createMapMessage();
            sent.setByte("b", (byte) 1);
            sent.setChar("c", 'c');
            sent.setString("s", "12");
            sent.setBytes("a", new byte[] {1, 2});
            session.createProducer(queue(session)).send(sent);
            MapMessage got = (MapMessage) consumer.receive(LONG);
            return got.getInt("b") + " " + got.getLong("b") + " " + got.getString("b") + " "
                    + failure(() -> got.getFloat("b")) + " " + failure(() -> got.getInt("c")) + " "
                    + got.getString("c") + " " + got.getShort("s") + " " + got.getDouble("s") + " "
                    + got.getBytes("a").length + " " + failure(() -> got.getString("a")) + " "
                    + failure(() -> got.getInt("missing")) + " " + got.itemExists("missing");
        });
        CASES.put("a stream is read again", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            StreamMessage sent = session.createStreamMessage();
            sent.writeInt(1);
            sent.writeString("x");
            sent.writeBytes(new byte[] {1, 2, 3});
            session.createProducer(queue(session)).send(sent);
            StreamMessage got = (StreamMessage) consumer.receive(LONG);
            String first = got.readLong() + " " + failure(got::readInt);
            got.reset();
            byte[] part = new byte[2];
            return first + " " + got.readString() + " " + got.readString() + " "
                    + got.readBytes(part) + " " + got.readBytes(part) + " " + failure(got::readInt);
        });
        CASES.put("a received message is read only", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            TextMessage sent = session.createTextMessage("a");
            sent.setIntProperty("n", 1);
            session.createProducer(queue(session)).send(sent);
            TextMessage got = (TextMessage) consumer.receive(LONG);
            String locked = done(() -> got.setText("b")) + " " + done(() -> got.setIntProperty("n", 2));
            got.clearBody();
            got.setText("b");
            String kept = got.getText() + got.getIntProperty("n");
            got.clearProperties();
            got.setIntProperty("n", 2);
            return locked + " " + kept + " " + got.getText() + got.getIntProperty("n");
        });
        CASES.put("each kind of message", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MessageProducer producer = session.createProducer(queue(session));
            List<Object> kinds = new ArrayList<>();
            for (Message sent : new Message[] {
                    session.createMessage(), session.createTextMessage(),
                    session.createBytesMessage(), session.createMapMessage(),
                    session.createStreamMessage(), session.createObjectMessage()}) {
                producer.send(sent);
                Message got = consumer.receive(LONG);
                Class<?>[] types = {TextMessage.class, BytesMessage.class, MapMessage.class,
                        StreamMessage.class, ObjectMessage.class};
                kinds.add(Arrays.stream(types).filter(type -> type.isInstance(got))
                        .map(Class::getSimpleName).toList());
            }
            return kinds;
        });
        CASES.put("headers that are not set", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            send(session, queue(session), "a");
            Message got = consumer.receive(LONG);
            return got.getJMSType() + " " + got.getJMSCorrelationID() + " " + got.getJMSReplyTo()
                    + " " + got.getJMSDestination().equals(queue(session)) + " "
                    + (got.getJMSDestination() instanceof Queue) + " " + got.getJMSDeliveryTime();
        });
        CASES.put("reply to a topic and to a temporary one", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            List<Object> found = new ArrayList<>();
            for (Destination to : new Destination[] {topic(session), session.createTemporaryTopic()}) {
                TextMessage sent = session.createTextMessage("a");
                sent.setJMSReplyTo(to);
                session.createProducer(queue(session)).send(sent);
                Destination got = consumer.receive(LONG).getJMSReplyTo();
                found.add(got.equals(to) + " " + (got instanceof Topic) + " "
                        + (got instanceof TemporaryTopic));
            }
            return found;
        });
        CASES.put("bounds of a producer", () -> {
            Session session = session();
            MessageProducer one = session.createProducer(queue(session));
            return done(() -> one.setPriority(10)) + " " + done(() -> one.setPriority(-1)) + " "
                    + done(() -> one.setDeliveryMode(3)) + " " + done(() -> one.setDeliveryDelay(-1));
        });
    }

    private static void closed() {
        CASES.put("what a closed consumer, producer and browser do", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MessageProducer producer = session.createProducer(queue(session));
            QueueBrowser browser = session.createBrowser(queue(session));
            consumer.close();
            producer.close();
            browser.close();
            return failure(() -> consumer.receive(NONE)) + " " + failure(consumer::getMessageSelector)
                    + " " + done(() -> producer.send(session.createTextMessage("a"))) + " "
                    + failure(producer::getPriority) + " " + failure(browser::getEnumeration) + " "
                    + done(consumer::close) + " " + done(producer::close);
        });
        CASES.put("what a closed session does", () -> {
            Session session = session(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(queue(session));
            send(session, queue(session), "a");
            Message got = consumer.receive(LONG);
            session.close();
            return text(got) + " " + done(got::acknowledge) + " " + done(session::recover) + " "
                    + failure(session::createTextMessage) + " " + failure(() -> consumer.receive(NONE))
                    + " " + failure(session::getTransacted) + " " + done(session::close);
        });
        CASES.put("what a closed connection does", () -> {
            Connection connection = connect();
            Session session = connection.createSession(true, 0);
            connection.close();
            return done(connection::start) + " " + done(connection::stop) + " "
                    + failure(connection::getClientID) + " " + done(session::commit) + " "
                    + failure(() -> session.createQueue("a")) + " " + failure(connection::getMetaData);
        });
        CASES.put("receiving ends with the consumer", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            FutureTask<String> task = new FutureTask<>(() -> text(consumer.receive()));
            new Thread(task).start();
            Thread.sleep(200);
            consumer.close();
            return task.get(5, TimeUnit.SECONDS);
        });
        CASES.put("a listener and receive", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            consumer.setMessageListener(one -> {
            });
            return failure(() -> consumer.receive(NONE)) + " " + failure(consumer::receiveNoWait);
        });
        CASES.put("destinations that are none", () -> {
            Session session = session();
            return failure(() -> session.createConsumer(null)) + " "
                    + failure(() -> session.createBrowser(null)) + " "
                    + done(() -> session.createProducer(null).send(null, session.createMessage())) + " "
                    + failure(() -> session.createConsumer(queue(session), "n ="))
                    + " " + failure(() -> session.createBrowser(queue(session), "n ="))
                    + " " + done(() -> session.unsubscribe("nobody"));
        });
        CASES.put("a browser of nothing, and of priorities", () -> {
            Session session = session();
            List<String> before = browse(session.createBrowser(queue(session)));
            MessageProducer producer = session.createProducer(queue(session));
            for (int priority : new int[] {1, 9, 4, 9}) {
                producer.setPriority(priority);
                producer.send(session.createTextMessage("p" + priority));
            }
            return before + " " + browse(session.createBrowser(queue(session)));
        });
    }

    private static void counted() {
        CASES.put("a rollback keeps priorities and counts", () -> {
            Session out = session();
            MessageProducer producer = out.createProducer(queue(out));
            for (int priority : new int[] {4, 9, 1}) {
                producer.setPriority(priority);
                producer.send(out.createTextMessage("p" + priority));
            }
            Session in = session(Session.SESSION_TRANSACTED);
            MessageConsumer consumer = in.createConsumer(queue(in));
            String seen = seen(consumer.receive(LONG)) + ", " + seen(consumer.receive(LONG));
            in.rollback();
            for (int i = 0; i < 3; i++) {
                seen += ", " + seen(consumer.receive(LONG));
            }
            in.commit();
            return seen + ", " + text(consumer.receive(NONE));
        });
        CASES.put("recovered again and again", () -> {
            Session in = session(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = in.createConsumer(queue(in));
            send(in, queue(in), "a");
            List<String> found = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                found.add(seen(consumer.receive(LONG)));
                in.recover();
            }
            return found;
        });
        CASES.put("delayed in a transaction", () -> {
            Session session = session(Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(queue(session));
            MessageProducer producer = session.createProducer(queue(session));
            producer.setDeliveryDelay(400);
            producer.send(session.createTextMessage("rolled back"));
            session.rollback();
            producer.send(session.createTextMessage("late"));
            session.commit();
            String early = text(consumer.receive(NONE));
            return early + " " + text(consumer.receive(LONG)) + " " + text(consumer.receive(NONE));
        });
        CASES.put("delays decide the order", () -> {
            Session session = session();
            MessageConsumer consumer = session.createConsumer(queue(session));
            MessageProducer producer = session.createProducer(queue(session));
            for (int delay : new int[] {900, 600, 300}) {
                producer.setDeliveryDelay(delay);
                producer.send(session.createTextMessage("after " + delay));
            }
            String listed = browse(session.createBrowser(queue(session))).toString();
            return listed + " " + all(consumer, 3);
        });
        CASES.put("a subscriber that is stopped gets nothing expired", () -> {
            Connection connection = connect();
            Session in = connection.createSession(false, 1);
            MessageConsumer consumer = in.createConsumer(topic(in));
            connection.stop();
            Session out = session();
            MessageProducer producer = out.createProducer(topic(out));
            producer.setTimeToLive(100);
            producer.send(out.createTextMessage("short"));
            producer.setTimeToLive(0);
            producer.send(out.createTextMessage("long"));
            Thread.sleep(300);
            connection.start();
            return all(consumer, 1);
        });
        CASES.put("asynchronous, to a queue that is gone", () -> {
            Session session = session();
            TemporaryQueue gone = session.createTemporaryQueue();
            MessageProducer producer = session.createProducer(gone);
            gone.delete();
            BlockingQueue<String> heard = new LinkedBlockingQueue<>();
            String called = done(() -> producer.send(session.createTextMessage("a"),
                    hearing(heard, message -> "completed")));
            return called + " " + heard.poll(LONG, TimeUnit.MILLISECONDS);
        });
        CASES.put("asynchronous in a transaction", () -> {
            Session session = session(Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(queue(session));
            BlockingQueue<String> heard = new LinkedBlockingQueue<>();
            session.createProducer(queue(session)).send(session.createTextMessage("a"),
                    hearing(heard, message -> "completed"));
            session.commit();
            return heard.poll(LONG, TimeUnit.MILLISECONDS) + " " + all(consumer, 1);
        });
        CASES.put("shared, with selectors of each", () -> {
            Session one = session();
            MessageConsumer odd = one.createSharedConsumer(topic(one), "odd", "n IN ('1', '3')");
            MessageConsumer any = one.createSharedConsumer(topic(one), "any");
            Session out = session();
            for (int i = 0; i < 4; i++) {
                TextMessage sent = out.createTextMessage("" + i);
                sent.setStringProperty("n", "" + i);
                out.createProducer(topic(out)).send(sent);
            }
            return all(odd, 2) + " " + all(any, 4);
        });
        CASES.put("shared by clients with and without id", () -> {
            Session named = client("sharing").createSession(false, 1);
            Session other = session();
            MessageConsumer one = named.createSharedConsumer(topic(named), "s");
            MessageConsumer two = other.createSharedConsumer(topic(other), "s");
            Session out = session();
            send(out, topic(out), 1, 2);
            return all(one, 2) + " " + all(two, 2);
        });
        CASES.put("shared durable, another selector or topic", () -> {
            Session in = session();
            MessageConsumer one = in.createSharedDurableConsumer(topic(in), name);
            String active = failure(() -> in.createSharedDurableConsumer(topic(in), name, "n = 1"))
                    + " " + failure(() -> in.createSharedDurableConsumer(in.createTopic(name + 2), name))
                    + " " + done(() -> in.unsubscribe(name));
            one.close();
            Session out = session();
            send(out, topic(out), "old");
            MessageConsumer two = in.createSharedDurableConsumer(topic(in), name, "n IS NULL");
            send(out, topic(out), "new");
            List<String> texts = all(two, 1);
            two.close();
            return active + " " + texts + " " + done(() -> in.unsubscribe(name));
        });
        CASES.put("a durable subscription moves to another topic", () -> {
            Session in = client("moving").createSession(false, 1);
            in.createDurableConsumer(topic(in), "s").close();
            Session out = session();
            send(out, topic(out), "old");
            MessageConsumer moved = in.createDurableConsumer(in.createTopic(name + 2), "s");
            send(out, topic(out), "lost");
            send(out, out.createTopic(name + 2), "new");
            List<String> texts = all(moved, 1);
            moved.close();
            return texts + " " + done(() -> in.unsubscribe("s"));
        });
        CASES.put("unsubscribed and subscribed again", () -> {
            Session in = client("renewed").createSession(false, 1);
            in.createDurableConsumer(topic(in), "s").close();
            Session out = session();
            send(out, topic(out), "old");
            in.unsubscribe("s");
            MessageConsumer again = in.createDurableConsumer(topic(in), "s");
            send(out, topic(out), "new");
            List<String> texts = all(again, 1);
            again.close();
            return texts + " " + done(() -> in.unsubscribe("s"));
        });
        CASES.put("a temporary topic in use and gone", () -> {
            Session session = session();
            TemporaryTopic mine = session.createTemporaryTopic();
            MessageConsumer consumer = session.createConsumer(mine);
            String used = done(mine::delete);
            consumer.close();
            return used + " " + done(mine::delete) + " " + done(() -> send(session, mine, "a"))
                    + " " + done(() -> session.createConsumer(mine));
        });
    }

    private static void contextsAndTheirErrors() {
        CASES.put("context, what it refuses", () -> {
            JMSContext context = context(JMSContext.AUTO_ACKNOWLEDGE);
            return failure(() -> context.createConsumer(context.createQueue(name), "n =")) + " "
                    + failure(() -> context.createConsumer(null)) + " "
                    + done(() -> context.unsubscribe("nobody")) + " " + done(context::commit) + " "
                    + failure(() -> context.createDurableConsumer(context.createTopic(name), "s")) + " "
                    + done(() -> context.createProducer().setPriority(10)) + " "
                    + done(() -> context.createProducer().send(null, "a")) + " "
                    + failure(() -> factory().createContext("guest", "wrong"));
        });
        CASES.put("context, closed", () -> {
            JMSContext context = context(JMSContext.AUTO_ACKNOWLEDGE);
            JMSConsumer consumer = context.createConsumer(context.createQueue(name));
            context.close();
            context.close();
            return failure(() -> context.createQueue(name)) + " " + done(context::start) + " "
                    + failure(() -> consumer.receive(NONE)) + " " + failure(() -> context.createContext(1));
        });
        CASES.put("context, not started by itself", () -> {
            JMSContext context = context(JMSContext.AUTO_ACKNOWLEDGE);
            context.setAutoStart(false);
            JMSConsumer consumer = context.createConsumer(context.createQueue(name));
            context.createProducer().send(context.createQueue(name), "a");
            String before = String.valueOf(consumer.receiveBody(String.class, NONE));
            context.start();
            return before + " " + consumer.receiveBody(String.class, LONG);
        });
        CASES.put("context, what its producer sets", () -> {
            JMSContext context = context(JMSContext.AUTO_ACKNOWLEDGE);
            Queue to = context.createQueue(name);
            JMSConsumer consumer = context.createConsumer(to);
            JMSProducer producer = context.createProducer().setDeliveryMode(1).setPriority(8)
                    .setTimeToLive(60000).setJMSCorrelationID("c").setJMSReplyTo(to)
                    .setJMSType("kind").setProperty("n", 1L).setProperty("s", "x");
            producer.send(to, context.createTextMessage("a"));
            Message got = consumer.receive(LONG);
            String shown = got.getJMSDeliveryMode() + " " + got.getJMSPriority() + " "
                    + (got.getJMSExpiration() > 0) + " " + got.getJMSCorrelationID() + " "
                    + got.getJMSReplyTo().equals(to) + " " + got.getJMSType() + " "
                    + got.getLongProperty("n") + " " + got.getStringProperty("s");
            producer.clearProperties().send(to, "b");
            return shown + " " + consumer.receive(LONG).propertyExists("n");
        });
        CASES.put("context, shared and delayed", () -> {
            JMSContext context = context(JMSContext.AUTO_ACKNOWLEDGE);
            Topic to = context.createTopic(name);
            JMSConsumer one = context.createSharedDurableConsumer(to, name);
            context.createProducer().setDeliveryDelay(400).send(to, "late");
            context.createProducer().send(to, "now");
            String got = one.receiveBody(String.class, LONG) + " " + one.receiveBody(String.class, LONG);
            String active = done(() -> context.unsubscribe(name));
            one.close();
            return got + " " + active + " " + done(() -> context.unsubscribe(name));
        });
        CASES.put("context, asynchronous", () -> {
            JMSContext context = context(JMSContext.AUTO_ACKNOWLEDGE);
            BlockingQueue<String> heard = new LinkedBlockingQueue<>();
            context.createProducer()
                    .setAsync(hearing(heard, message -> failure(() -> text(message))))
                    .send(context.createQueue(name), "a");
            JMSConsumer consumer = context.createConsumer(context.createQueue(name));
            return heard.poll(LONG, TimeUnit.MILLISECONDS) + " "
                    + consumer.receiveBody(String.class, LONG);
        });
        CASES.put("context, browsed", () -> {
            JMSContext context = context(JMSContext.CLIENT_ACKNOWLEDGE);
            Queue to = context.createQueue(name);
            for (String each : List.of("a", "b")) {
                context.createProducer().setProperty("n", each).send(to, each);
            }
            return browse(context.createBrowser(to)) + " "
                    + browse(context.createBrowser(to, "n = 'b'"));
        });
    }

    public static void main(String[] arguments) throws Exception {
        Logger.getLogger("").setLevel(Level.OFF);
        PrintStream out =
                new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        address = arguments[0];
        connections();
        acknowledgements();
        transactions();
        distributed();
        headers();
        bodies();
        sending();
        selected();
        queues();
        topics();
        subscriptions();
        temporary();
        contexts();
        conversions();
        closed();
        counted();
        contextsAndTheirErrors();
        List<String> wanted = Arrays.asList(arguments).subList(1, arguments.length);
        for (Map.Entry<String, Case> one : CASES.entrySet()) {
            if (wanted.isEmpty() || wanted.contains(one.getKey())) {
                name = "case_" + one.getKey().replaceAll("[^a-z0-9]", "_");
                FutureTask<String> task = new FutureTask<>(() -> failure(one.getValue()));
                Thread runner = new Thread(task);
                runner.setDaemon(true);
                runner.start();
                out.println(one.getKey() + ": " + failure(() -> task.get(20, TimeUnit.SECONDS)));
                for (AutoCloseable open : OPEN) {
                    failure(() -> {
                        open.close();
                        return null;
                    });
                }
                OPEN.clear();
            }
        }
        System.exit(0);
    }
}
