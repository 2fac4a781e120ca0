import com.sun.messaging.ConnectionConfiguration;
import com.sun.messaging.ConnectionFactory;
import jakarta.jms.*;

/**
 * A queue that one connection writes to and reads from.
 *
 * <p>usage: KeyTraffic ADDRESS
 */
public final class KeyTraffic {
    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setProperty(ConnectionConfiguration.imqAddressList, arguments[0]);
        factory.setProperty(ConnectionConfiguration.imqReconnectEnabled, "false");
        factory.setProperty(ConnectionConfiguration.imqSSLIsHostTrusted, "true");
        try (Connection connection = factory.createConnection("guest", "guest")) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            Queue queue = session.createQueue("meters");
            MessageProducer producer = session.createProducer(queue);
            for (int number = 0; number < 3; number++) {
                TextMessage message = session.createTextMessage(number + " kWh");
                message.setIntProperty("meter", number);
                producer.send(message);
            }
            BytesMessage large = session.createBytesMessage();
            large.writeBytes(new byte[18_000]);
            producer.send(large);
            connection.start();
            MessageConsumer consumer = session.createConsumer(queue);
            for (int number = 0; number < 4; number++) {
                if (consumer.receive(5000) == null) {
                    throw new AssertionError("message " + number + " did not arrive");
                }
            }
        }
    }
}
