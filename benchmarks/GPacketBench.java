import com.sun.messaging.jmq.io.GPacket;
import java.io.ByteArrayInputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/**
 * How fast the shipped class reads a stream of GPackets from memory, in one thread.
 *
 * <p>usage: GPacketBench FILE [WARM_SECONDS] [ROUNDS]. The file is repeated to at least 120 MB. Each case is warmed
 * and then timed over whole passes: {@code header} (every header field, every flag asked for), {@code all} (these, the
 * property table with its values, the payload's bytes), {@code same_columns} (these, and the texts a row of ours has:
 * the letters of the flags, property values), {@code memcpy} (the same bytes by System.arraycopy into memory already
 * touched). Prints one JSON object: best and median of the rounds.
 */
public final class GPacketBench {
    private static final int BYTES = 120_000_000;
    private static final String LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef";
    private static byte[] stream;
    private static byte[] copy;
    private static long packets;
    /** What the passes add up to; printed, so that no read can be optimised away. */
    private static long checksum;

    private interface Pass {
        void run() throws Exception;
    }

    private static long header(GPacket packet) {
        long sum = packet.getVersion() + packet.getType() + packet.getSize() + packet.getMagic();
        sum += packet.getPayloadSize() + packet.getTimestamp() + packet.getSequence();
        for (int bit = 0; bit < LETTERS.length(); bit++) {
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
        for (int bit = 0; bit < LETTERS.length(); bit++) {
            if (packet.getBit(1 << bit)) {
                flags.append(LETTERS.charAt(bit));
            }
        }
        long sum = flags.length();
        for (Map.Entry<String, Object> property : (Set<Map.Entry<String, Object>>) packet.propsEntrySet()) {
            sum += property.getValue().toString().length();
        }
        return sum;
    }

    private static void read(boolean propertiesAndPayload, boolean texts) throws Exception {
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
        byte[] once = Files.readAllBytes(Path.of(arguments[0]));
        double warmSeconds = arguments.length > 1 ? Double.parseDouble(arguments[1]) : 5;
        int rounds = arguments.length > 2 ? Integer.parseInt(arguments[2]) : 9;
        int repeats = (BYTES + once.length - 1) / once.length;
        stream = new byte[once.length * repeats];
        for (int i = 0; i < repeats; i++) {
            System.arraycopy(once, 0, stream, i * once.length, once.length);
        }
        copy = new byte[stream.length];
        Map<String, Pass> cases = new LinkedHashMap<>();
        cases.put("header", () -> read(false, false));
        cases.put("all", () -> read(true, false));
        cases.put("same_columns", () -> read(true, true));
        cases.put("memcpy", GPacketBench::move);
        StringBuilder out = new StringBuilder();
        for (Map.Entry<String, Pass> one : cases.entrySet()) {
            out.append(String.format(", \"%s\": %s", one.getKey(), measure(one.getValue(), warmSeconds, rounds)));
        }
        System.out.printf(
            "{\"java\": \"%s\", \"bytes\": %d, \"packets\": %d, \"checksum\": %d%s}%n",
            System.getProperty("java.version"), stream.length, packets, checksum, out);
    }
}
