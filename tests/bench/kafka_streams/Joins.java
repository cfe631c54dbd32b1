import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Function;
import java.util.function.LongConsumer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Joins and groups of Kafka Streams over two topics of texts: the source, and one with `-right` behind its name. What is
 * asked for is `kind:how:first:second:grace`, several have commas between them; times are milliseconds. A joined value
 * is `[left,right]`, with null for no match. Each writes to a topic with `-kind-how` behind the output's name; a single
 * one writes to the output topic.
 *
 * stream   two streams within `first` before and `second` behind the left message; how is inner, left or outer
 * table    a stream with a table of the right topic; how is inner or left
 * history  the same with a versioned table that keeps rows for `first`
 * tables   two tables; how is inner, left or outer
 * foreign  two tables, the left one by the key that is its row: what a JSON text says, or other JSON as it is; how is
 *          inner or left
 * group    messages by their value; how is count, or windows of `first` with the count of each; both repartition
 * rows     rows of a table, which are numbers, by their remainder of 3; how is count, total (count and sum), or filter: the
 *          same of ten times the even ones; or merchant: the number of rows, which are JSON objects, by their merchant,
 *          where `seen` is called for each row that is added to a group or taken out, too
 */
final class Joins {
    private static final Serde<String> TEXT = Serdes.String();
    private static final ValueJoiner<String, String, String> PAIR = (left, right) -> "[" + left + "," + right + "]";

    private final KStream<String, String> left;
    private final KStream<String, String> right;
    private final LongConsumer seen;
    private final Map<String, KTable<String, String>> tables = new HashMap<>();

    private Joins(StreamsBuilder builder, String asked, String source, LongConsumer seen) {
        Consumed<String, String> texts = Consumed.with(TEXT, TEXT);
        left = builder.<String, String>stream(source, texts).peek((key, value) -> seen.accept(1));
        right = asked.startsWith("group") || asked.startsWith("rows:merchant") ? null
            : builder.<String, String>stream(source + "-right", texts).peek((key, value) -> seen.accept(1));
        this.seen = seen;
    }

    /** Adds what is asked for; `seen` is called for each message that was read, also from a repartition topic. */
    static void add(StreamsBuilder builder, String asked, String source, String output, LongConsumer seen) {
        Joins joins = new Joins(builder, asked, source, seen);
        String[] all = asked.split(",");
        for (String one : all) {
            String[] parts = one.split(":");
            String topic = all.length == 1 ? output : output + "-" + parts[0] + "-" + parts[1];
            joins.made(parts).to(topic, Produced.with(TEXT, TEXT));
        }
    }

    private KStream<String, String> made(String[] parts) {
        Duration first = Duration.ofMillis(Long.parseLong(parts[2]));
        Duration second = Duration.ofMillis(Long.parseLong(parts[3]));
        Duration grace = Duration.ofMillis(Long.parseLong(parts[4]));
        return switch (parts[0]) {
            case "stream" -> streams(parts[1], first, second, grace);
            case "table" -> withTable(parts[1], table(right, "right"));
            case "history" -> withTable(parts[1], versioned(first));
            case "tables" -> tables(parts[1], table(left, "left"), table(right, "right")).toStream();
            case "foreign" -> foreign(parts[1], table(left, "left"), table(right, "right")).toStream();
            case "group" -> grouped(parts[1], first, grace);
            case "rows" -> rows(parts[1], table(left, "left")).toStream();
            default -> throw new IllegalArgumentException(parts[0]);
        };
    }

    private KStream<String, String> streams(String how, Duration before, Duration after, Duration grace) {
        JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(before, grace).before(before).after(after);
        StreamJoined<String, String, String> with = StreamJoined.with(TEXT, TEXT, TEXT);
        return switch (how) {
            case "inner" -> left.join(right, PAIR, windows, with);
            case "left" -> left.leftJoin(right, PAIR, windows, with);
            default -> left.outerJoin(right, PAIR, windows, with);
        };
    }

    private KStream<String, String> withTable(String how, KTable<String, String> table) {
        Joined<String, String, String> with = Joined.with(TEXT, TEXT, TEXT);
        return how.equals("inner") ? left.join(table, PAIR, with) : left.leftJoin(table, PAIR, with);
    }

    private static KTable<String, String> tables(String how, KTable<String, String> left, KTable<String, String> right) {
        return switch (how) {
            case "inner" -> left.join(right, PAIR);
            case "left" -> left.leftJoin(right, PAIR);
            default -> left.outerJoin(right, PAIR);
        };
    }

    private static KTable<String, String> foreign(String how, KTable<String, String> left, KTable<String, String> right) {
        Materialized<String, String, KeyValueStore<Bytes, byte[]>> kept = Materialized.with(TEXT, TEXT);
        Function<String, String> key = row -> row.startsWith("\"") ? row.substring(1, row.length() - 1) : row;
        return how.equals("inner") ? left.join(right, key, PAIR, kept) : left.leftJoin(right, key, PAIR, kept);
    }

    private KTable<String, String> table(KStream<String, String> rows, String name) {
        Materialized<String, String, KeyValueStore<Bytes, byte[]>> kept = Materialized.as(name);
        return tables.computeIfAbsent(name, any -> rows.toTable(kept.withKeySerde(TEXT).withValueSerde(TEXT)));
    }

    private KTable<String, String> versioned(Duration retention) {
        return tables.computeIfAbsent("versioned", name -> right.toTable(
            Materialized.<String, String>as(Stores.persistentVersionedKeyValueStore(name, retention))
                .withKeySerde(TEXT).withValueSerde(TEXT)));
    }

    private KTable<String, String> rows(String how, KTable<String, String> table) {
        if (how.equals("merchant")) {
            return table.groupBy((key, row) -> KeyValue.pair(merchantOf(row), ""), Grouped.with("by-merchant", TEXT, TEXT))
                .aggregate(() -> 0L, (key, row, total) -> counted(total, 1), (key, row, total) -> counted(total, -1),
                    Materialized.with(TEXT, Serdes.Long()))
                .mapValues(String::valueOf);
        }
        KTable<String, String> from = !how.equals("filter") ? table
            : table.filter((key, row) -> Long.parseLong(row) % 2 == 0)
                .mapValues(row -> String.valueOf(10 * Long.parseLong(row)));
        KGroupedTable<String, String> by = from.groupBy(
            (key, row) -> KeyValue.pair(String.valueOf(Math.floorMod(Long.parseLong(row), 3L)), row),
            Grouped.with("by-remainder-" + how, TEXT, TEXT));
        if (how.equals("count")) {
            return by.count(Materialized.with(TEXT, Serdes.Long())).mapValues(String::valueOf);
        }
        return by.aggregate(() -> "0,0", (key, row, total) -> moved(total, row, 1),
            (key, row, total) -> moved(total, row, -1), Materialized.with(TEXT, TEXT));
    }

    private long counted(long total, int more) {
        seen.accept(1);
        return total + more;
    }

    private static String moved(String total, String row, int sign) {
        String[] parts = total.split(",");
        return (Long.parseLong(parts[0]) + sign) + "," + (Long.parseLong(parts[1]) + sign * Long.parseLong(row));
    }

    private static String merchantOf(String value) {
        int at = value.indexOf("\"merchant\":\"");
        return at < 0 ? value : value.substring(at + 12, value.indexOf('"', at + 12));
    }

    private KStream<String, String> grouped(String how, Duration size, Duration grace) {
        // A JSON object is grouped by its merchant, as the bench does.
        KGroupedStream<String, String> by = left.filter((key, value) -> value != null)
            .selectKey((key, value) -> merchantOf(value))
            .repartition(Repartitioned.with(TEXT, TEXT).withName("by-value-" + how))
            .peek((key, value) -> seen.accept(1))
            .groupByKey(Grouped.with(TEXT, TEXT));
        if (how.equals("count")) {
            Materialized<String, Long, KeyValueStore<Bytes, byte[]>> kept = Materialized.as("counts");
            return by.count(kept.withKeySerde(TEXT)).toStream().mapValues(String::valueOf);
        }
        Materialized<String, Long, WindowStore<Bytes, byte[]>> kept = Materialized.as("windows");
        return by.windowedBy(TimeWindows.ofSizeAndGrace(size, grace)).count(kept.withKeySerde(TEXT)).toStream()
            .map((window, count) -> KeyValue.pair(window.key(), "[" + window.window().start() + "," + count + "]"));
    }
}
