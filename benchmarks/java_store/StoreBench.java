import java.io.File;
import java.io.RandomAccessFile;
import java.lang.management.ManagementFactory;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The questions of benchmarks/store_*.py, put to RocketMQ's DefaultMessageStore in process. Prints one JSON line.
 *
 *   java -cp ... StoreBench append|read|recovery|flush|topics DIRECTORY RECORDS ROUNDS
 *
 * Messages as there: bodies of 1 KiB, batches of 32 where the store takes them, 8 queues, no index. Times of one thread
 * are its CPU time; all are the best of the rounds behind a warm-up of the compiler.
 */
public class StoreBench {
    static final int BODY = 1024;
    static final int BATCH = 32;
    static final int QUEUES = 8;
    static final String TOPIC = "BenchmarkTopic";
    static final SocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    static String directory;
    static int records;
    static int rounds;

    public static void main(String[] args) throws Exception {
        directory = args[1];
        records = Integer.parseInt(args[2]);
        rounds = Integer.parseInt(args[3]);
        String line;
        switch (args[0]) {
            case "append": line = append(); break;
            case "read": line = read(); break;
            case "recovery": line = recovery(); break;
            case "flush": line = flush(); break;
            case "topics": line = topics(); break;
            default: throw new IllegalArgumentException(args[0]);
        }
        System.out.println("{\"benchmark\": \"" + args[0] + "\", \"system\": \"java\", " + line + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static DefaultMessageStore open(FlushDiskType flush, boolean warm) throws Exception {
        MessageStoreConfig c = new MessageStoreConfig();
        c.setStorePathRootDir(directory);
        c.setStorePathCommitLog(directory + "/commitlog");
        c.setMappedFileSizeCommitLog(1 << 30);
        c.setMappedFileSizeConsumeQueue(20 * 10_000);
        c.setFlushDiskType(flush);
        c.setWarmMapedFileEnable(warm);
        c.setMessageIndexEnable(false);
        c.setTimerWheelEnable(false);
        c.setEnableCompaction(false);
        c.setHaListenPort(0);
        c.setMaxMessageSize(4 << 20);
        BrokerConfig b = new BrokerConfig();
        DefaultMessageStore store = new DefaultMessageStore(
            c, new BrokerStatsManager(b), (t, q, o, tc, ts, f, p) -> { }, b, new ConcurrentHashMap<>());
        return store;
    }

    static DefaultMessageStore start(FlushDiskType flush, boolean warm) throws Exception {
        DefaultMessageStore store = open(flush, warm);
        if (!store.load()) {
            throw new IllegalStateException("load");
        }
        store.start();
        return store;
    }

    static MessageExtBrokerInner single(String topic, int queueId) {
        MessageExtBrokerInner m = new MessageExtBrokerInner();
        fill(m, topic, queueId);
        m.setBody(new byte[BODY]);
        m.putUserProperty("k", "v");
        m.setTags("TagA");
        m.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, "TagA"));
        m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
        return m;
    }

    static void fill(MessageExtBrokerInner m, String topic, int queueId) {
        m.setTopic(topic);
        m.setQueueId(queueId);
        m.setBornTimestamp(System.currentTimeMillis());
        m.setBornHost(HOST);
        m.setStoreHost(HOST);
        m.setSysFlag(0);
    }

    static MessageExtBatch batch(int queueId) {
        List<Message> inner = new ArrayList<>();
        for (int i = 0; i < BATCH; i++) {
            Message m = new Message(TOPIC, "TagA", new byte[BODY]);
            m.putUserProperty("k", "v");
            inner.add(m);
        }
        MessageExtBatch m = new MessageExtBatch();
        fill(m, TOPIC, queueId);
        m.setBody(MessageDecoder.encodeMessages(inner));
        return m;
    }

    static long cpu() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }

    static void check(PutMessageResult r) {
        if (!r.isOk()) {
            throw new IllegalStateException(String.valueOf(r));
        }
    }

    static void dispatched(DefaultMessageStore store) throws Exception {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    static double mb(long bytes, long nanos) {
        return bytes * 1e3 / nanos;
    }

    static String figure(String name, double value) {
        return String.format("\"%s\": %.1f", name, value);
    }

    static String append() throws Exception {
        DefaultMessageStore store = start(FlushDiskType.ASYNC_FLUSH, true);
        double thread = 0;
        double wall = 0;
        double one = 0;
        for (int round = 0; round <= rounds; round++) {
            List<MessageExtBatch> batches = new ArrayList<>();
            for (int i = 0; i < records / BATCH; i++) {
                batches.add(batch(i % QUEUES));
            }
            long from = store.getMaxPhyOffset();
            long began = System.nanoTime();
            long cpu = cpu();
            for (MessageExtBatch b : batches) {
                check(store.putMessages(b));
            }
            cpu = cpu() - cpu;
            long took = System.nanoTime() - began;
            long bytes = store.getMaxPhyOffset() - from;
            dispatched(store);
            if (round > 0) {
                thread = Math.max(thread, mb(bytes, cpu));
                wall = Math.max(wall, mb(bytes, took));
            }
            one = Math.max(one, singles(store, 1));
        }
        return figure("thread_mb_per_s", thread) + ", " + figure("wall_mb_per_s", wall) + ", " + figure("single_mb_per_s", one);
    }

    /** Bytes per CPU second of one thread that puts messages one by one, over so many topics in turn. */
    static double singles(DefaultMessageStore store, int topics) throws Exception {
        int count = Math.max(records / 4, topics);
        List<MessageExtBrokerInner> messages = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            messages.add(single(topics == 1 ? TOPIC : String.format("Topic%05d", i % topics), topics == 1 ? i % QUEUES : 0));
        }
        long from = store.getMaxPhyOffset();
        long cpu = cpu();
        for (MessageExtBrokerInner m : messages) {
            check(store.putMessage(m));
        }
        cpu = cpu() - cpu;
        double rate = mb(store.getMaxPhyOffset() - from, cpu);
        dispatched(store);
        return rate;
    }

    static void fillStore(DefaultMessageStore store) throws Exception {
        for (int i = 0; i < records / BATCH; i++) {
            check(store.putMessages(batch(i % QUEUES)));
        }
        dispatched(store);
    }

    static String read() throws Exception {
        DefaultMessageStore store = start(FlushDiskType.ASYNC_FLUSH, false);
        fillStore(store);
        double get = 0;
        double copied = 0;
        ByteBuffer target = ByteBuffer.allocateDirect(1 << 20);
        for (int round = 0; round <= rounds; round++) {
            for (int mode = 0; mode < 2; mode++) {
                long bytes = 0;
                long cpu = cpu();
                for (int queue = 0; queue < QUEUES; queue++) {
                    long offset = 0;
                    long max = store.getMaxOffsetInQueue(TOPIC, queue);
                    while (offset < max) {
                        GetMessageResult r = store.getMessage("G", TOPIC, queue, offset, BATCH, null);
                        bytes += r.getBufferTotalSize();
                        offset = r.getNextBeginOffset();
                        if (mode == 1) {
                            target.clear();
                            for (ByteBuffer part : r.getMessageBufferList()) {
                                target.put(part);
                            }
                        }
                        r.release();
                    }
                }
                double rate = mb(bytes, cpu() - cpu);
                if (mode == 0) {
                    get = Math.max(get, rate);
                } else {
                    copied = Math.max(copied, rate);
                }
            }
        }
        return figure("get_mb_per_s", get) + ", " + figure("copied_mb_per_s", copied);
    }

    static String recovery() throws Exception {
        DefaultMessageStore store = start(FlushDiskType.ASYNC_FLUSH, false);
        fillStore(store);
        long bytes = store.getMaxPhyOffset();
        store.shutdown();
        double best = 0;
        for (int round = 0; round <= rounds; round++) {
            new File(directory, "abort").createNewFile();
            try (RandomAccessFile file = new RandomAccessFile(new File(directory, "checkpoint"), "rw")) {
                file.write(new byte[4096]);
            }
            DefaultMessageStore again = open(FlushDiskType.ASYNC_FLUSH, false);
            long began = System.nanoTime();
            if (!again.load()) {
                throw new IllegalStateException("load");
            }
            best = Math.max(best, mb(bytes, System.nanoTime() - began));
            if (again.getMaxPhyOffset() != bytes) {
                throw new IllegalStateException("recovered " + again.getMaxPhyOffset() + " of " + bytes);
            }
            again.start();
            again.shutdown();
        }
        return figure("mb_per_s", best);
    }

    static String flush() throws Exception {
        DefaultMessageStore store = start(FlushDiskType.SYNC_FLUSH, false);
        int count = records / BATCH;
        double best = 0;
        for (int round = 0; round <= rounds; round++) {
            ArrayDeque<CompletableFuture<PutMessageResult>> flying = new ArrayDeque<>();
            long began = System.nanoTime();
            for (int i = 0; i < count; i++) {
                flying.add(store.asyncPutMessages(batch(i % QUEUES)));
                if (flying.size() == 4) {
                    check(flying.poll().get());
                }
            }
            while (!flying.isEmpty()) {
                check(flying.poll().get());
            }
            best = Math.max(best, count * (double) BATCH * 1e9 / (System.nanoTime() - began));
        }
        return figure("messages_per_s", best);
    }

    static String topics() throws Exception {
        DefaultMessageStore store = start(FlushDiskType.ASYNC_FLUSH, true);
        StringBuilder line = new StringBuilder();
        for (int topics : new int[] {1, 100, 10_000}) {
            double best = 0;
            for (int round = 0; round <= rounds; round++) {
                double rate = singles(store, topics);
                best = round == 0 ? 0 : Math.max(best, rate);
            }
            line.append(line.length() == 0 ? "" : ", ").append(figure("topics_" + topics + "_mb_per_s", best));
        }
        return line.toString();
    }
}
