import com.sun.messaging.ConnectionConfiguration;
import com.sun.messaging.ConnectionFactory;
import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;

/** Prints what comes to all topics below a name, and answers each message at its JMSReplyTo. */
public class Topics {
    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setProperty(ConnectionConfiguration.imqAddressList, args[0]);
        Connection connection = factory.createConnection();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(session.createTopic("plant.>"));
        connection.start();
        System.out.println("ready");
        for (int left = Integer.parseInt(args[1]); left > 0; left--) {
            Message message = consumer.receive(10_000);
            String body = message instanceof TextMessage text ? "text " + text.getText()
                : "bytes " + ((BytesMessage) message).getBodyLength();
            System.out.println(((Topic) message.getJMSDestination()).getTopicName() + " | " + body
                + " | " + message.getJMSDeliveryMode() + " | " + message.getJMSCorrelationID()
                + " | " + message.getJMSType() + " | " + message.getStringProperty("unit"));
            if (message.getJMSReplyTo() == null) continue;
            MessageProducer producer = session.createProducer(message.getJMSReplyTo());
            producer.setDeliveryMode(DeliveryMode.PERSISTENT);
            TextMessage answer = session.createTextMessage("answer");
            answer.setJMSCorrelationID(message.getJMSCorrelationID());
            answer.setIntProperty("count", 3);
            producer.send(answer);
        }
        connection.close();
    }
}
