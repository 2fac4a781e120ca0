import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttClientBuilder;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt3.Mqtt3BlockingClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5BlockingClient;
import java.nio.charset.StandardCharsets;
import java.util.TreeSet;

/** Talks to itself through a broker: port, version of MQTT, and scheme are its arguments. */
public final class HiveMq {
    private static final int MESSAGES = 30;
    private static final TreeSet<String> PAYLOADS = new TreeSet<>();

    private HiveMq() {}

    public static void main(String[] arguments) throws Exception {
        MqttClientBuilder builder = MqttClient.builder().identifier("hivemq").serverHost("127.0.0.1")
                .serverPort(Integer.parseInt(arguments[0]));
        if (arguments[2].equals("ws")) {
            builder = builder.webSocketWithDefaultConfig();
        }
        if (arguments[1].equals("5")) {
            talk(builder.useMqttVersion5().buildBlocking());
        } else {
            talk(builder.useMqttVersion3().buildBlocking());
        }
        System.out.println(String.join(",", PAYLOADS));
        System.exit(0);
    }

    private static void talk(Mqtt3BlockingClient client) throws Exception {
        client.connect();
        try (Mqtt3BlockingClient.Mqtt3Publishes got = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter("plant/#").qos(MqttQos.EXACTLY_ONCE).send();
            for (int number = 0; number < MESSAGES; number++) {
                client.publishWith().topic("plant/x").qos(MqttQos.fromCode(number % 3))
                        .payload(payload(number)).send();
            }
            for (int number = 0; number < MESSAGES; number++) {
                PAYLOADS.add(new String(got.receive().getPayloadAsBytes(), StandardCharsets.UTF_8));
            }
        }
        client.disconnect();
    }

    private static void talk(Mqtt5BlockingClient client) throws Exception {
        client.connect();
        try (Mqtt5BlockingClient.Mqtt5Publishes got = client.publishes(MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter("plant/#").qos(MqttQos.EXACTLY_ONCE).send();
            for (int number = 0; number < MESSAGES; number++) {
                client.publishWith().topic("plant/x").qos(MqttQos.fromCode(number % 3))
                        .payload(payload(number)).send();
            }
            for (int number = 0; number < MESSAGES; number++) {
                PAYLOADS.add(new String(got.receive().getPayloadAsBytes(), StandardCharsets.UTF_8));
            }
        }
        client.disconnect();
    }

    private static byte[] payload(int number) {
        return ("message " + number).getBytes(StandardCharsets.UTF_8);
    }
}
