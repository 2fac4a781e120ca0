import com.sun.messaging.jmq.io.ReadOnlyPacket;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.ObjectOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.Callable;

/**
 * What the shipped packet classes read: one JSON object a packet, under the names of our own rows.
 *
 * <p>usage: ReadBack FILE. Bytes are hex, absent is null, characters beyond ASCII are escaped. A getter that throws
 * leaves its field out and is named in {@code errors}; a packet that cannot be read at all has {@code errors.packet}
 * and is the last line. {@code message_id} is the id a client would see: item 2, else the text id.
 */
public final class ReadBack {
    private final Map<String, String> fields = new LinkedHashMap<>();
    private final Map<String, String> errors = new LinkedHashMap<>();

    private void put(String name, Callable<Object> getter) {
        try {
            fields.put(name, json(getter.call()));
        } catch (Exception failure) {
            errors.put(name, text(failure.toString()));
        }
    }

    private static String json(Object value) throws Exception {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof byte[] bytes) {
            return '"' + HexFormat.of().formatHex(bytes) + '"';
        }
        if (value instanceof Map<?, ?> properties) {
            Map<String, String> typed = new LinkedHashMap<>();
            for (Map.Entry<?, ?> property : properties.entrySet()) {
                typed.put((String) property.getKey(), typed(property.getValue()));
            }
            return object(typed);
        }
        return text(value.toString());
    }

    private static String text(String value) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char unit : value.toCharArray()) {
            if (unit < ' ' || unit > '~' || unit == '"' || unit == '\\') {
                quoted.append(String.format("\\u%04x", (int) unit));
            } else {
                quoted.append(unit);
            }
        }
        return quoted.append('"').toString();
    }

    /** A property's type is that of the value read back, so an OBJECT holding a String says string. */
    private static String typed(Object value) throws Exception {
        Map<String, String> typed = new LinkedHashMap<>();
        if (value instanceof Number || value instanceof Boolean || value instanceof String) {
            typed.put("type", text(value.getClass().getSimpleName().toLowerCase()));
            typed.put("value", text(value.toString()));
        } else {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
                out.writeObject(value);
            }
            typed.put("type", text("object"));
            typed.put("value", json(bytes.toByteArray()));
            typed.put("class", json(value == null ? null : value.getClass().getName()));
        }
        return object(typed);
    }

    private static String object(Map<String, String> fields) {
        StringJoiner joined = new StringJoiner(",", "{", "}");
        for (Map.Entry<String, String> field : fields.entrySet()) {
            joined.add(text(field.getKey()) + ":" + field.getValue());
        }
        return joined.toString();
    }

    private static int flags(ReadOnlyPacket packet) {
        int flags = 0;
        for (int bit = 1; bit < 0x10000; bit <<= 1) {
            flags |= packet.getFlag(bit) ? bit : 0;
        }
        return flags;
    }

    private void describe(ReadOnlyPacket packet) {
        put("version", packet::getVersion);
        put("packet_type", packet::getPacketType);
        put("size", packet::getPacketSize);
        put("expiration", packet::getExpiration);
        put("timestamp", packet::getTimestamp);
        put("source_ip", packet::getIP);
        put("source_port", packet::getPort);
        put("sequence", packet::getSequence);
        put("property_offset", packet::getPropertyOffset);
        put("property_size", packet::getPropertySize);
        put("priority", packet::getPriority);
        put("encryption", packet::getEncryption);
        put("bit_flags", () -> flags(packet));
        put("consumer_id", packet::getConsumerID);
        put("transaction_id", packet::getTransactionID);
        put("producer_id", packet::getProducerID);
        put("delivery_time", packet::getDeliveryTime);
        put("delivery_count", packet::getDeliveryCount);
        put("destination", packet::getDestination);
        put("message_id", packet::getMessageID);
        put("sys_message_id", () -> packet.getSysMessageID().toString());
        put("correlation_id", packet::getCorrelationID);
        put("reply_to", packet::getReplyTo);
        put("message_type", packet::getMessageType);
        put("destination_class", packet::getDestinationClass);
        put("reply_to_class", packet::getReplyToClass);
        put("properties", packet::getProperties);
        put("body", packet::getMessageBodyByteArray);
    }

    public static void main(String[] arguments) throws Exception {
        byte[] stream = Files.readAllBytes(Path.of(arguments[0]));
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.US_ASCII);
        // The classes complain on standard output; that is ours.
        System.setOut(System.err);
        ByteArrayInputStream in = new ByteArrayInputStream(stream);
        boolean readable = true;
        while (readable && in.available() > 0) {
            ReadBack line = new ReadBack();
            int offset = stream.length - in.available();
            ReadOnlyPacket packet = new ReadOnlyPacket();
            try {
                packet.readPacket(in);
                line.describe(packet);
            } catch (Exception failure) {
                line.errors.put("packet", text(failure.toString()));
                readable = false;
            }
            int length = stream.length - in.available() - offset;
            line.put("offset", () -> offset);
            line.put("length", () -> length);
            line.fields.put("errors", object(line.errors));
            out.println(object(line.fields));
        }
        out.flush();
    }
}
