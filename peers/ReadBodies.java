import com.sun.messaging.jmq.io.ReadWritePacket;
import com.sun.messaging.jmq.jmsclient.MessageImpl;
import jakarta.jms.BytesMessage;
import jakarta.jms.MapMessage;
import jakarta.jms.MessageEOFException;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import java.io.ByteArrayInputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.HexFormat;
import java.util.Map;

/**
 * What the message classes of the shipped client read of bodies: a line for each value, as an application gets it.
 *
 * <p>usage: ReadBodies FILE. A line is the number of the packet, the name of the value (empty but in a MAP), its Java class
 * and its text, with tabs between. Bytes are hex, other characters than printable ASCII are escaped.
 */
public final class ReadBodies {
    private static final Map<Integer, String> CLASSES =
            Map.of(1, "TextMessageImpl", 2, "BytesMessageImpl", 3, "MapMessageImpl", 4, "StreamMessageImpl");

    private final PrintStream out;
    private final int number;

    private ReadBodies(PrintStream out, int number) {
        this.out = out;
        this.number = number;
    }

    private void line(String name, Object value) {
        String type = value == null ? "null" : value.getClass().getSimpleName();
        String shown = value instanceof byte[] bytes ? HexFormat.of().formatHex(bytes) : String.valueOf(value);
        out.println(String.join("\t", String.valueOf(number), escaped(name), type, escaped(shown)));
    }

    private static String escaped(String value) {
        StringBuilder plain = new StringBuilder();
        for (char unit : value.toCharArray()) {
            plain.append(unit < ' ' || unit > '~' || unit == '\\' ? String.format("\\u%04x", (int) unit) : "" + unit);
        }
        return plain.toString();
    }

    /** Make the client's message of a packet, as its reader thread does; what it calls is not public. */
    private static MessageImpl message(ReadWritePacket packet) throws Exception {
        String name = "com.sun.messaging.jmq.jmsclient." + CLASSES.get(packet.getPacketType());
        Constructor<?> constructor = Class.forName(name).getDeclaredConstructor();
        constructor.setAccessible(true);
        MessageImpl message = (MessageImpl) constructor.newInstance();
        Method setPacket = MessageImpl.class.getDeclaredMethod("setPacket", ReadWritePacket.class);
        setPacket.setAccessible(true);
        setPacket.invoke(message, packet);
        Method open = message.getClass().getDeclaredMethod("getMessageBodyFromPacket");
        open.setAccessible(true);
        open.invoke(message);
        Method readOnly = MessageImpl.class.getDeclaredMethod("setMessageReadMode", boolean.class);
        readOnly.setAccessible(true);
        readOnly.invoke(message, true);
        return message;
    }

    private void show(MessageImpl message) throws Exception {
        if (message instanceof TextMessage text) {
            line("", text.getText());
        } else if (message instanceof BytesMessage body) {
            byte[] bytes = new byte[(int) body.getBodyLength()];
            body.readBytes(bytes);
            line("", bytes);
        } else if (message instanceof MapMessage map) {
            for (Object name : Collections.list(map.getMapNames())) {
                line((String) name, map.getObject((String) name));
            }
        } else if (message instanceof StreamMessage stream) {
            try {
                while (true) {
                    line("", stream.readObject());
                }
            } catch (MessageEOFException end) {
                return;
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.US_ASCII);
        // The classes complain on standard output; that is ours.
        System.setOut(System.err);
        ByteArrayInputStream in = new ByteArrayInputStream(Files.readAllBytes(Path.of(arguments[0])));
        for (int number = 0; in.available() > 0; number++) {
            ReadWritePacket packet = new ReadWritePacket();
            packet.readPacket(in);
            new ReadBodies(out, number).show(message(packet));
        }
        out.flush();
    }
}
