import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.function.BiFunction;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Window;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Windows of Kafka Streams over one stream. A window is `kind:duration:step:grace:emit:columns:retention`, several have
 * commas between them: kind is tumbling, hopping, sliding or session; times are milliseconds; emit is current or final;
 * columns are `totals`, or `count` of a tumbling window; a retention of 0 is the default. One window writes to the output
 * topic, several to topics with `-kind-emit` behind its name.
 */
final class Windows {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static final class Totals {
        public long start;
        public long end;
        public long count;
        public double total;
    }

    public static final class Count {
        public long start;
        public long end;
        public long value;
    }

    private Windows() {
    }

    static void add(KStream<String, RunningTotal.Payment> source, String windows, String output) {
        String[] asked = windows.split(",");
        KGroupedStream<String, RunningTotal.Payment> grouped =
            source.groupByKey(Grouped.with(Serdes.String(), RunningTotal.payments()));
        for (String one : asked) {
            String[] parts = one.split(":");
            String name = parts[0] + "-" + parts[4];
            boolean last = parts[4].equals("final");
            String topic = asked.length == 1 ? output : output + "-" + name;
            if (parts[5].equals("count")) {
                TimeWindows of = TimeWindows.ofSizeAndGrace(millis(parts[1]), millis(parts[3]));
                send(grouped.windowedBy(of).count(Materialized.as(name)), last, Windows::counted, Count.class, topic);
            } else {
                send(table(grouped, parts, name), last, Windows::totalled, Totals.class, topic);
            }
        }
    }

    private static <V, R> void send(
        KTable<Windowed<String>, V> table, boolean last, BiFunction<Window, V, R> result, Class<R> kind, String topic
    ) {
        if (last) {
            table = table.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()));
        }
        ObjectWriter writer = JSON.writerFor(kind);
        Serializer<R> write = (name, value) -> {
            try {
                return writer.writeValueAsBytes(value);
            } catch (JsonProcessingException problem) {
                throw new UncheckedIOException(problem);
            }
        };
        Serde<R> serde = Serdes.serdeFrom(write, (name, bytes) -> { throw new UnsupportedOperationException(); });
        table.toStream()
            // Of sessions that merge, Kafka Streams sends the former ones as deleted.
            .filter((window, value) -> value != null)
            .map((window, value) -> KeyValue.pair(window.key(), result.apply(window.window(), value)))
            .to(topic, Produced.with(Serdes.String(), serde));
    }

    private static Duration millis(String told) {
        return Duration.ofMillis(Long.parseLong(told));
    }

    private static KTable<Windowed<String>, RunningTotal.Totals> table(
        KGroupedStream<String, RunningTotal.Payment> grouped, String[] parts, String name
    ) {
        Duration duration = millis(parts[1]);
        Duration step = millis(parts[2]);
        Duration grace = millis(parts[3]);
        if (parts[0].equals("session")) {
            Materialized<String, RunningTotal.Totals, SessionStore<Bytes, byte[]>> sessions =
                Materialized.<String, RunningTotal.Totals, SessionStore<Bytes, byte[]>>as(name)
                    .withKeySerde(Serdes.String()).withValueSerde(RunningTotal.states());
            if (!parts[6].equals("0")) {
                sessions = sessions.withRetention(millis(parts[6]));
            }
            return grouped.windowedBy(SessionWindows.ofInactivityGapAndGrace(duration, grace)).aggregate(
                RunningTotal.Totals::new, Windows::fold, (key, first, second) -> merged(first, second), sessions);
        }
        Materialized<String, RunningTotal.Totals, WindowStore<Bytes, byte[]>> store =
            Materialized.<String, RunningTotal.Totals, WindowStore<Bytes, byte[]>>as(name)
                .withKeySerde(Serdes.String()).withValueSerde(RunningTotal.states());
        if (parts[0].equals("sliding")) {
            return grouped.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(duration, grace))
                .aggregate(RunningTotal.Totals::new, Windows::fold, store);
        }
        return grouped.windowedBy(TimeWindows.ofSizeAndGrace(duration, grace).advanceBy(step))
            .aggregate(RunningTotal.Totals::new, Windows::fold, store);
    }

    private static RunningTotal.Totals fold(String key, RunningTotal.Payment payment, RunningTotal.Totals before) {
        RunningTotal.Totals made = new RunningTotal.Totals();
        made.count = before.count + 1;
        made.total = before.total + payment.amount;
        return made;
    }

    private static RunningTotal.Totals merged(RunningTotal.Totals first, RunningTotal.Totals second) {
        RunningTotal.Totals made = new RunningTotal.Totals();
        made.count = first.count + second.count;
        made.total = first.total + second.total;
        return made;
    }

    private static Totals totalled(Window window, RunningTotal.Totals of) {
        Totals made = new Totals();
        made.start = window.start();
        made.end = window.end();
        made.count = of.count;
        made.total = of.total;
        return made;
    }

    private static Count counted(Window window, Long count) {
        Count made = new Count();
        made.start = window.start();
        made.end = window.end();
        made.value = count;
        return made;
    }
}
