import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Joins in Kafka Streams' own test driver, without a broker: one partition, messages in the order of the lines of
 * standard input, as `{"topic", "key", "value", "time"}`; results are such lines. The arguments are what is asked for, as
 * `Joins` describes it, and the folder of state; the topics are `in` and `in-right`, and `out`.
 */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("application.id", "driver");
        settings.put("bootstrap.servers", "none:0");
        settings.put("state.dir", arguments[1]);
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
        StreamsBuilder builder = new StreamsBuilder();
        Joins.add(builder, arguments[0], "in", "out", many -> { });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), settings)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                JsonNode given = JSON.readTree(line);
                driver.createInputTopic(given.get("topic").asText(), new StringSerializer(), new StringSerializer())
                    .pipeInput(new TestRecord<>(text(given, "key"), text(given, "value"), null, given.get("time").asLong()));
            }
            Set<String> topics = driver.producedTopicNames();
            for (String topic : topics) {
                if (!topic.startsWith("out")) {
                    continue;
                }
                for (TestRecord<String, String> made : driver
                        .createOutputTopic(topic, new StringDeserializer(), new StringDeserializer())
                        .readRecordsToList()) {
                    ObjectNode told = JSON.createObjectNode();
                    told.put("topic", topic).put("key", made.key()).put("value", made.value()).put("time", made.timestamp());
                    System.out.println(told);
                }
            }
        }
    }

    private static String text(JsonNode given, String field) {
        return given.get(field).isNull() ? null : given.get(field).asText();
    }

    private Driver() {
    }
}
