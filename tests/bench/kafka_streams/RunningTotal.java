import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.RocksDBConfigSetter;
import org.apache.kafka.streams.state.Stores;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;

/**
 * Kafka Streams with the same fold: a persistent, cached store with compact binary state, Jackson for JSON, lz4, one
 * stream thread, and its own defaults for the rest. Arguments are name=value; ends after `count` messages, committed.
 */
public final class RunningTotal {
    private static final String STORE = "totals";
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final AtomicLong processed = new AtomicLong();
    private static final CountDownLatch ended = new CountDownLatch(1);
    private static volatile Throwable failure;

    @JsonIgnoreProperties(ignoreUnknown = true)
    public static final class Payment {
        public String user_id;
        public double amount;
        public long ts;
        public String currency;
        public String method;
        public String merchant;
    }

    public static final class Output {
        public String user_id;
        public long count;
        public double total;
        public double mean;
        public double min;
        public double max;
        public long ts;
    }

    static final class Totals {
        long count;
        double total;
        double min = Double.POSITIVE_INFINITY;
        double max = Double.NEGATIVE_INFINITY;
    }

    static Serde<Payment> payments() {
        ObjectReader reader = JSON.readerFor(Payment.class);
        Deserializer<Payment> read = (topic, bytes) -> {
            try {
                return reader.readValue(bytes);
            } catch (IOException problem) {
                throw new UncheckedIOException(problem);
            }
        };
        return Serdes.serdeFrom((topic, value) -> { throw new UnsupportedOperationException(); }, read);
    }

    private static Serde<Output> outputs() {
        ObjectWriter writer = JSON.writerFor(Output.class);
        Serializer<Output> write = (topic, value) -> {
            try {
                return writer.writeValueAsBytes(value);
            } catch (IOException problem) {
                throw new UncheckedIOException(problem);
            }
        };
        return Serdes.serdeFrom(write, (topic, bytes) -> { throw new UnsupportedOperationException(); });
    }

    static Serde<Totals> states() {
        Serializer<Totals> write = (topic, of) -> of == null ? null : ByteBuffer.allocate(32)
            .putLong(of.count).putDouble(of.total).putDouble(of.min).putDouble(of.max).array();
        Deserializer<Totals> read = (topic, bytes) -> {
            if (bytes == null) {
                return null;
            }
            ByteBuffer from = ByteBuffer.wrap(bytes);
            Totals of = new Totals();
            of.count = from.getLong();
            of.total = from.getDouble();
            of.min = from.getDouble();
            of.max = from.getDouble();
            return of;
        };
        return Serdes.serdeFrom(write, read);
    }

    /** Counts a message; the last one ends the program. */
    static void seen(long count) {
        if (processed.incrementAndGet() == count) {
            ended.countDown();
        }
    }

    static final class Fold implements Processor<String, Payment, String, Output> {
        private final long count;
        private KeyValueStore<String, Totals> store;
        private ProcessorContext<String, Output> context;

        Fold(long count) {
            this.count = count;
        }

        @Override
        public void init(ProcessorContext<String, Output> given) {
            context = given;
            store = given.getStateStore(STORE);
        }

        @Override
        public void process(Record<String, Payment> record) {
            Payment payment = record.value();
            Totals of = store.get(record.key());
            if (of == null) {
                of = new Totals();
            }
            of.count++;
            of.total += payment.amount;
            if (payment.amount < of.min) {
                of.min = payment.amount;
            }
            if (payment.amount > of.max) {
                of.max = payment.amount;
            }
            store.put(record.key(), of);
            Output output = new Output();
            output.user_id = payment.user_id;
            output.count = of.count;
            output.total = of.total;
            output.mean = of.total / of.count;
            output.min = of.min;
            output.max = of.max;
            output.ts = payment.ts;
            context.forward(record.withValue(output));
            seen(count);
        }
    }

    /** Restores of all tasks: from the first one's beginning to the last one's end. */
    static final class Restores implements StateRestoreListener {
        final AtomicLong from = new AtomicLong();
        final AtomicLong to = new AtomicLong();
        final AtomicLong records = new AtomicLong();

        @Override
        public void onRestoreStart(TopicPartition partition, String store, long first, long last) {
            from.compareAndSet(0, System.nanoTime());
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long last, long many) {
            records.addAndGet(many);
        }

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long many) {
            to.set(System.nanoTime());
        }
    }

    /** One block cache of a given size for all stores. */
    public static final class SmallCache implements RocksDBConfigSetter {
        private static LRUCache cache;

        @Override
        public synchronized void setConfig(String store, Options options, Map<String, Object> configs) {
            if (cache == null) {
                cache = new LRUCache(Long.parseLong((String) configs.get("bench.block.cache.mb")) << 20);
            }
            BlockBasedTableConfig table = (BlockBasedTableConfig) options.tableFormatConfig();
            table.setBlockCache(cache);
            options.setTableFormatConfig(table);
        }

        @Override
        public void close(String store, Options options) {
        }
    }

    private static void addTotals(
        StreamsBuilder builder, Properties settings, Map<String, String> given, long count
    ) {
        KStream<String, Payment> source =
            builder.stream(given.get("source"), Consumed.with(Serdes.String(), payments()));
        if (given.getOrDefault("windows", "").isEmpty()) {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore(STORE), Serdes.String(), states()).withCachingEnabled());
            source.process(() -> new Fold(count), STORE)
                .to(given.get("output"), Produced.with(Serdes.String(), outputs()));
            return;
        }
        // A result for each message: with its cache, Kafka Streams would leave some out.
        if (given.get("windows").contains(":current")) {
            settings.put("statestore.cache.max.bytes", "0");
        }
        Windows.add(source.peek((key, payment) -> seen(count)), given.get("windows"), given.get("output"));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            given.put(argument.substring(0, at), argument.substring(at + 1));
        }
        Properties settings = new Properties();
        settings.put("bootstrap.servers", given.get("bootstrap"));
        settings.put("application.id", given.get("group"));
        settings.put("state.dir", given.get("state_dir"));
        boolean exactlyOnce = given.get("guarantee").equals("exactly-once");
        settings.put("processing.guarantee", exactlyOnce ? "exactly_once_v2" : "at_least_once");
        settings.put("commit.interval.ms", Long.toString(Math.round(Double.parseDouble(given.get("commit_s")) * 1000)));
        settings.put("num.stream.threads", "1");
        settings.put("auto.offset.reset", "earliest");
        settings.put("producer.compression.type", "lz4");
        if (!given.get("block_cache_mb").equals("0")) {
            settings.put("bench.block.cache.mb", given.get("block_cache_mb"));
            settings.put("rocksdb.config.setter", SmallCache.class);
        }
        if (!given.getOrDefault("session_ms", "0").equals("0")) {
            settings.put("session.timeout.ms", given.get("session_ms"));
        }
        long count = Long.parseLong(given.get("count"));
        StreamsBuilder builder = new StreamsBuilder();
        if (!given.getOrDefault("joins", "").isEmpty()) {
            settings.put("statestore.cache.max.bytes", "0");
            // Rows of an outer join without a match come with each message, and not once a second by the clock.
            settings.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
            Joins.add(builder, given.get("joins"), given.get("source"), given.get("output"), many -> seen(count));
        } else {
            addTotals(builder, settings, given, count);
        }
        Restores restores = new Restores();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setGlobalStateRestoreListener(restores);
            streams.setUncaughtExceptionHandler(problem -> {
                failure = problem;
                ended.countDown();
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            if (!ended.await(30, TimeUnit.MINUTES)) {
                throw new IllegalStateException("got " + processed.get() + " of " + count + " messages");
            }
            streams.close(Duration.ofSeconds(60));
        }
        if (failure != null) {
            failure.printStackTrace();
            System.exit(1);
        }
        double seconds = (restores.to.get() - restores.from.get()) / 1e9;
        System.out.printf("{\"restore_s\": %.3f, \"restored\": %d}%n", seconds, restores.records.get());
    }
}
