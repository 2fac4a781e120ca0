import com.sun.messaging.jmq.io.GPacket;
import com.sun.messaging.jmq.io.PacketType;
import com.sun.messaging.jmq.io.ReadOnlyPacket;
import java.io.ByteArrayInputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Hashtable;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/**
 * How fast the shipped classes read a stream of packets from memory, in one thread.
 *
 * <p>usage: PacketBench jmq|gpacket FILE [WARM_SECONDS] [ROUNDS]. The file is repeated to at least 120 MB. Each case is
 * warmed and then timed over whole passes. Cases of jmq: {@code header_items} (every header field, every item), {@code all}
 * (these, the property table with its values, the body's bytes), {@code all_text_ids} (these, and the two texts made of header
 * fields: JMSMessageID and the SysMessageID), {@code same_columns} (these, and the other texts a row of ours has: address,
 * packet type, property values). Cases of gpacket: {@code header} (every header field, every flag), {@code all} (these, the
 * property table with its values, the payload's bytes), {@code same_columns} (these, and the texts a row of ours has: the
 * letters of the flags, property values). Of both: {@code memcpy} (the same bytes by System.arraycopy into memory already
 * touched). Prints one JSON object: best and median of the rounds.
 */
public final class PacketBench {
    private static final int BYTES = 120_000_000;
    private static final String FLAGS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef";
    private static byte[] stream;
    private static byte[] copy;
    private static long packets;
    /** What the passes add up to; printed, so that no read can be optimised away. */
    private static long checksum;

    private interface Pass {
        void run() throws Exception;
    }

    private static long length(String text) {
        return text == null ? 0 : text.length();
    }

    private static long headerAndItems(ReadOnlyPacket packet) {
        long sum = packet.getVersion() + packet.getPacketType() + packet.getPacketSize() + packet.getExpiration();
        sum += packet.getTimestamp() + packet.getIP()[15] + packet.getPort() + packet.getSequence();
        sum += packet.getPropertyOffset() + packet.getPropertySize() + packet.getPriority() + packet.getEncryption();
        sum += packet.getFlag(1) ? 1 : 0;
        sum += packet.getConsumerID() + packet.getTransactionID() + packet.getProducerID();
        sum += packet.getDeliveryTime() + packet.getDeliveryCount();
        sum += length(packet.getDestination()) + length(packet.getCorrelationID()) + length(packet.getReplyTo());
        sum += length(packet.getMessageType()) + length(packet.getDestinationClass()) + length(packet.getReplyToClass());
        return sum;
    }

    private static long propertiesAndBody(ReadOnlyPacket packet) throws Exception {
        long sum = 0;
        Hashtable<?, ?> properties = packet.getProperties();
        if (properties != null) {
            for (Map.Entry<?, ?> property : properties.entrySet()) {
                sum += ((String) property.getKey()).length() + property.getValue().hashCode();
            }
        }
        byte[] body = packet.getMessageBodyByteArray();
        return body == null ? sum : sum + body.length + body[body.length - 1];
    }

    private static long textIds(ReadOnlyPacket packet) {
        return length(packet.getMessageID()) + length(packet.getSysMessageID().toString());
    }

    /** The texts of a row beside the ids: address, packet type, and every property value in the string conversion. */
    private static long texts(ReadOnlyPacket packet) throws Exception {
        long sum = packet.getSysMessageID().getIPAddress().toString().length();
        sum += PacketType.getString(packet.getPacketType()).length();
        Hashtable<?, ?> properties = packet.getProperties();
        if (properties != null) {
            for (Object value : properties.values()) {
                sum += value.toString().length();
            }
        }
        return sum;
    }

    private static void read(boolean propertiesAndBody, boolean textIds, boolean texts) throws Exception {
        ByteArrayInputStream in = new ByteArrayInputStream(stream);
        long read = 0;
        while (in.available() > 0) {
            ReadOnlyPacket packet = new ReadOnlyPacket();
            packet.readPacket(in);
            checksum += headerAndItems(packet);
            if (propertiesAndBody) {
                checksum += propertiesAndBody(packet);
            }
            if (textIds) {
                checksum += textIds(packet);
            }
            if (texts) {
                checksum += texts(packet);
            }
            read++;
        }
        packets = read;
    }

    private static long header(GPacket packet) {
        long sum = packet.getVersion() + packet.getType() + packet.getSize() + packet.getMagic();
        sum += packet.getPayloadSize() + packet.getTimestamp() + packet.getSequence();
        for (int bit = 0; bit < FLAGS.length(); bit++) {
            sum += packet.getBit(1 << bit) ? 1 : 0;
        }
        return sum;
    }

    @SuppressWarnings("unchecked")
    private static long propertiesAndPayload(GPacket packet) {
        long sum = 0;
        for (Map.Entry<String, Object> property : (Set<Map.Entry<String, Object>>) packet.propsEntrySet()) {
            sum += property.getKey().length() + property.getValue().hashCode();
        }
        ByteBuffer payload = packet.getPayload();
        return payload == null ? sum : sum + payload.limit() + payload.get(payload.limit() - 1);
    }

    @SuppressWarnings("unchecked")
    private static long texts(GPacket packet) {
        StringBuilder flags = new StringBuilder();
        for (int bit = 0; bit < FLAGS.length(); bit++) {
            if (packet.getBit(1 << bit)) {
                flags.append(FLAGS.charAt(bit));
            }
        }
        long sum = flags.length();
        for (Map.Entry<String, Object> property : (Set<Map.Entry<String, Object>>) packet.propsEntrySet()) {
            sum += property.getValue().toString().length();
        }
        return sum;
    }

    private static void readGPackets(boolean propertiesAndPayload, boolean texts) throws Exception {
        ByteArrayInputStream in = new ByteArrayInputStream(stream);
        long read = 0;
        while (in.available() > 0) {
            GPacket packet = GPacket.getInstance();
            packet.read(in);
            checksum += header(packet);
            if (propertiesAndPayload) {
                checksum += propertiesAndPayload(packet);
            }
            if (texts) {
                checksum += texts(packet);
            }
            read++;
        }
        packets = read;
    }

    private static void move() {
        System.arraycopy(stream, 0, copy, 0, stream.length);
        checksum += copy[copy.length - 1];
    }

    private static String measure(Pass pass, double warmSeconds, int rounds) throws Exception {
        long start = System.nanoTime();
        do {
            pass.run();
        } while (System.nanoTime() - start < warmSeconds * 1e9);
        double[] seconds = new double[rounds];
        for (int i = 0; i < rounds; i++) {
            start = System.nanoTime();
            pass.run();
            seconds[i] = (System.nanoTime() - start) / 1e9;
        }
        Arrays.sort(seconds);
        double best = seconds[0];
        double median = seconds[rounds / 2];
        return String.format(
            "{\"packets_per_s_best\": %.0f, \"packets_per_s_median\": %.0f, \"mb_per_s_best\": %.1f, \"mb_per_s_median\": %.1f}",
            packets / best, packets / median, stream.length / best / 1e6, stream.length / median / 1e6);
    }

    public static void main(String[] arguments) throws Exception {
        byte[] once = Files.readAllBytes(Path.of(arguments[1]));
        double warmSeconds = arguments.length > 2 ? Double.parseDouble(arguments[2]) : 5;
        int rounds = arguments.length > 3 ? Integer.parseInt(arguments[3]) : 9;
        int repeats = (BYTES + once.length - 1) / once.length;
        stream = new byte[once.length * repeats];
        for (int i = 0; i < repeats; i++) {
            System.arraycopy(once, 0, stream, i * once.length, once.length);
        }
        copy = new byte[stream.length];
        Map<String, Pass> cases = new LinkedHashMap<>();
        if (arguments[0].equals("jmq")) {
            cases.put("header_items", () -> read(false, false, false));
            cases.put("all", () -> read(true, false, false));
            cases.put("all_text_ids", () -> read(true, true, false));
            cases.put("same_columns", () -> read(true, true, true));
        } else {
            cases.put("header", () -> readGPackets(false, false));
            cases.put("all", () -> readGPackets(true, false));
            cases.put("same_columns", () -> readGPackets(true, true));
        }
        cases.put("memcpy", PacketBench::move);
        StringBuilder out = new StringBuilder();
        for (Map.Entry<String, Pass> one : cases.entrySet()) {
            out.append(String.format(", \"%s\": %s", one.getKey(), measure(one.getValue(), warmSeconds, rounds)));
        }
        System.out.printf(
            "{\"java\": \"%s\", \"bytes\": %d, \"packets\": %d, \"checksum\": %d%s}%n",
            System.getProperty("java.version"), stream.length, packets, checksum, out);
    }
}
