import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * What RocketMQ's 5.x client does through the 5.x proxy: java ProxyClient.java HOST:PORT CASE...
 * Topics and groups are there already. Prints "ok CASE" for each; ends with 1 at the first that fails.
 */
public class ProxyClient {
    private static final Duration LIMIT = Duration.ofSeconds(90);
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;

    public static void main(String[] args) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
        for (int i = 1; i < args.length; i++) {
            run(args[i]);
            System.out.println("ok " + args[i]);
        }
        System.exit(0);
    }

    private static void run(String name) throws Exception {
        switch (name) {
            case "normal": normal(); break;
            case "invisible": invisible(); break;
            case "fifo": fifo(); break;
            case "delay": delay(); break;
            case "transaction": transaction(); break;
            case "dead-letter": deadLetter(); break;
            default: throw new IllegalArgumentException("no such case: " + name);
        }
    }

    /** Sent, received by a simple consumer, acknowledged: each once. */
    private static void normal() throws Exception {
        Set<String> sent = new HashSet<>();
        try (Producer producer = producer("ProxyNormal")) {
            for (int i = 0; i < 20; i++) {
                sent.add("normal " + i);
                producer.send(message("ProxyNormal", "normal " + i).setTag("T").setKeys("key" + i).build());
            }
        }
        Set<String> found = new HashSet<>();
        try (SimpleConsumer consumer = simple("ProxyNormalGroup", "ProxyNormal")) {
            await(() -> {
                for (MessageView view : receive(consumer)) {
                    check(found.add(body(view)), "twice: " + body(view));
                    check(view.getTag().get().equals("T"), "tag");
                    ack(consumer, view);
                }
                return found.size() == sent.size();
            }, "all normal messages");
            check(found.equals(sent), "other messages: " + found);
        }
    }

    /** Received, put off, received again, acknowledged, and not received any more. */
    private static void invisible() throws Exception {
        try (Producer producer = producer("ProxyInvisible")) {
            producer.send(message("ProxyInvisible", "again").build());
        }
        try (SimpleConsumer consumer = simple("ProxyInvisibleGroup", "ProxyInvisible")) {
            List<MessageView> views = new ArrayList<>();
            await(() -> views.addAll(receive(consumer)), "the first time");
            consumer.changeInvisibleDuration(views.get(0), Duration.ofSeconds(1));
            views.clear();
            await(() -> views.addAll(receive(consumer)), "the second time");
            check(views.get(0).getDeliveryAttempt() > 1, "attempt " + views.get(0).getDeliveryAttempt());
            consumer.ack(views.get(0));
        }
    }

    /** One message group is consumed in the order it was sent in. */
    private static void fifo() throws Exception {
        List<String> sent = new ArrayList<>();
        List<String> found = new CopyOnWriteArrayList<>();
        try (Producer producer = producer("ProxyFifo")) {
            for (int i = 0; i < 30; i++) {
                sent.add("fifo " + i);
                producer.send(message("ProxyFifo", "fifo " + i).setMessageGroup("one").build());
            }
        }
        try (PushConsumer ignored = push("ProxyFifoGroup", "ProxyFifo", view -> {
            found.add(body(view));
            return ConsumeResult.SUCCESS;
        })) {
            await(() -> found.size() >= sent.size(), "all ordered messages");
        }
        check(found.equals(sent), "another order: " + found);
    }

    /** Delivered not before its time. */
    private static void delay() throws Exception {
        Set<String> found = ConcurrentHashMap.newKeySet();
        List<Long> early = new CopyOnWriteArrayList<>();
        long due = System.currentTimeMillis() + 3000;
        try (Producer producer = producer("ProxyDelay")) {
            producer.send(message("ProxyDelay", "delayed").setDeliveryTimestamp(due).build());
        }
        try (PushConsumer ignored = push("ProxyDelayGroup", "ProxyDelay", view -> {
            if (System.currentTimeMillis() < due - 1000) {
                early.add(due - System.currentTimeMillis());
            }
            found.add(body(view));
            return ConsumeResult.SUCCESS;
        })) {
            await(() -> found.contains("delayed"), "the delayed message");
        }
        check(early.isEmpty(), "too early by " + early);
    }

    /** Committed, rolled back, and left open until the broker asks: the first and the last arrive. */
    private static void transaction() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        Set<String> found = ConcurrentHashMap.newKeySet();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("ProxyTransaction").setTransactionChecker(view -> {
                asked.incrementAndGet();
                return body(view).equals("open") ? TransactionResolution.COMMIT : TransactionResolution.UNKNOWN;
            }).build();
        try (PushConsumer ignored = push("ProxyTransactionGroup", "ProxyTransaction", view -> {
            found.add(body(view));
            return ConsumeResult.SUCCESS;
        })) {
            for (String text : List.of("committed", "rolled back", "open")) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message("ProxyTransaction", text).build(), transaction);
                if (text.equals("committed")) {
                    transaction.commit();
                } else if (text.equals("rolled back")) {
                    transaction.rollback();
                }
            }
            await(() -> found.containsAll(Set.of("committed", "open")), "both transactions");
        }
        producer.close();
        check(asked.get() > 0, "the producer was asked");
        check(!found.contains("rolled back"), "rolled back, and delivered");
    }

    /** Refused as often as the group allows, then in its dead-letter topic. */
    private static void deadLetter() throws Exception {
        AtomicInteger attempts = new AtomicInteger();
        try (Producer producer = producer("ProxyDead")) {
            producer.send(message("ProxyDead", "poison").build());
        }
        try (PushConsumer ignored = push("ProxyDeadGroup", "ProxyDead", view -> {
            attempts.incrementAndGet();
            return ConsumeResult.FAILURE;
        }); SimpleConsumer dead = simple("ProxyDeadReaders", "%DLQ%ProxyDeadGroup")) {
            await(() -> receive(dead).stream().anyMatch(view -> body(view).equals("poison")), "the dead letter");
        }
        check(attempts.get() >= 2, "attempts: " + attempts);
    }

    private static Producer producer(String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
    }

    private static SimpleConsumer simple(String group, String topic) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
    }

    private static PushConsumer push(String group, String topic, MessageListener listener) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(listener).build();
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    private static List<MessageView> receive(SimpleConsumer consumer) {
        try {
            return consumer.receive(16, Duration.ofSeconds(15));
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /** The proxy knows for some seconds only where a dead leader was: what cannot be acknowledged yet is tried again. */
    private static void ack(SimpleConsumer consumer, MessageView view) {
        long end = System.nanoTime() + Duration.ofSeconds(12).toNanos();
        while (true) {
            try {
                consumer.ack(view);
                return;
            } catch (Exception e) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException(e);
                }
                sleep(200);
            }
        }
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void await(BooleanSupplier condition, String what) throws Exception {
        long end = System.nanoTime() + LIMIT.toNanos();
        while (!condition.getAsBoolean()) {
            check(System.nanoTime() < end, "not within " + LIMIT.getSeconds() + " s: " + what);
            sleep(50);
        }
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }
}
