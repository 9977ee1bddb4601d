// Answers conformance cases: one JSON object a line in, one a line out. The questions are flat
// objects of texts and numbers, which a pattern reads; a program of yours has a JSON library.
//
//     delayline-bench conformance java conformance/runners/Runner.java
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;

public class Runner {
    static final long LONGEST = (1 << 28) - 1;
    static final Pattern FIELD = Pattern.compile("\"(\\w+)\":(?:\"((?:[^\"\\\\]|\\\\.)*)\"|([^,}]+))");
    static final Pattern KEY = Pattern.compile("delay((?:\\.[01]{4}){7})\\.(.+)", Pattern.DOTALL);

    static final Pattern DELAYED =
            Pattern.compile("delay(?:\\.[01]{4}){7}\\.(.+?)(?:\\.~\\.[A-Za-z0-9_-]{1,64})?", Pattern.DOTALL);

    static String checkApp(String app) throws Exception {
        int length = app.getBytes("UTF-8").length;
        if (length < 1 || length > 150) throw new IllegalArgumentException("an app key is 1 to 150 bytes long");
        for (String word : app.split("\\.", -1)) {
            if (word.isEmpty() || word.equals("~")) throw new IllegalArgumentException("no word of an app key is empty or `~`");
        }
        if (app.chars().anyMatch(c -> c == '*' || c == '#' || Character.isWhitespace(c) || Character.isSpaceChar(c) || Character.isISOControl(c))) {
            throw new IllegalArgumentException("an app key has no `*`, `#`, white space or control characters");
        }
        return app;
    }

    static String routingKey(Object delay, String app) throws Exception {
        if (!(delay instanceof Double seconds) || !(seconds >= 0 && seconds <= LONGEST)) {
            throw new IllegalArgumentException("a delay is 0 to 268,435,455 seconds");
        }
        var key = new StringBuilder("delay.");
        int whole = (int) Math.ceil(seconds);
        for (int bit = 27; bit >= 0; bit--) key.append(whole >> bit & 1).append(bit % 4 == 0 ? "." : "");
        return key + checkApp(app);
    }

    static String recall(Object delay, String app, String id) throws Exception {
        if (!id.matches("[A-Za-z0-9_-]{1,64}")) {
            throw new IllegalArgumentException("an id is 1 to 64 of A-Z, a-z, 0-9, `_` and `-`");
        }
        String key = routingKey(delay, app) + ".~." + id;
        if (key.getBytes("UTF-8").length > 255) throw new IllegalArgumentException("the routing key is longer than 255 bytes");
        return "{\"key\":" + quoted(key) + ",\"exchange\":" + quoted("delay.recall." + app)
                + ",\"queue\":" + quoted("delay.recalled." + app) + "}";
    }

    static String appOf(String key) throws Exception {
        var delayed = DELAYED.matcher(key);
        return checkApp(delayed.matches() ? delayed.group(1) : key);
    }

    static String answer(Map<String, Object> question) throws Exception {
        String app = (String) question.get("app");
        switch ((String) question.get("question")) {
            case "key":
                return "{\"key\":" + quoted(routingKey(question.get("seconds"), app)) + "}";
            case "decode":
                var found = KEY.matcher((String) question.get("key"));
                if (!found.matches()) {
                    throw new IllegalArgumentException("a routing key is `delay`, seven words of four bits, and an app key");
                }
                int seconds = Integer.parseInt(found.group(1).replace(".", ""), 2);
                return "{\"seconds\":" + seconds + ",\"app\":" + quoted(checkApp(found.group(2))) + "}";
            case "recall":
                return recall(question.get("seconds"), app, (String) question.get("id"));
            case "retry":
                return "{\"app\":" + quoted(appOf((String) question.get("key"))) + "}";
            default:
                return "{\"pattern\":" + quoted("delay." + "*.".repeat(7) + checkApp(app)) + "}";
        }
    }

    static Map<String, Object> read(String line) {
        var fields = new HashMap<String, Object>();
        var found = FIELD.matcher(line);
        while (found.find()) {
            Object value = found.group(2) != null ? text(found.group(2)) : found.group(3).trim();
            try {
                if (found.group(2) == null) value = Double.valueOf((String) value);
            } catch (NumberFormatException notANumber) {
                // `true` and `null` stay what they are: no delay.
            }
            fields.put(found.group(1), value);
        }
        return fields;
    }

    static String text(String literal) {
        return Pattern.compile("\\\\(u([0-9a-f]{4})|.)").matcher(literal).replaceAll(it -> {
            String c = it.group(2) != null ? "" + (char) Integer.parseInt(it.group(2), 16) : switch (it.group(1)) {
                case "n" -> "\n"; case "t" -> "\t"; case "r" -> "\r"; case "b" -> "\b"; case "f" -> "\f";
                default -> it.group(1);
            };
            return java.util.regex.Matcher.quoteReplacement(c);
        });
    }

    static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    public static void main(String[] args) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        var output = new PrintStream(System.out, true, "UTF-8");
        for (String line; (line = lines.readLine()) != null; ) {
            try {
                output.println(answer(read(line)));
            } catch (IllegalArgumentException error) {
                output.println("{\"error\":" + quoted(error.getMessage()) + "}");
            }
        }
    }
}
