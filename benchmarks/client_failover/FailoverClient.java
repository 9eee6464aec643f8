import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's Java client with default settings: java FailoverClient NAMESRV TOPIC GROUP produce|consume|orderly RATE.
 * Lines: "A n us" acknowledged, "F n us why" failed, "G n sent_us us queue offset" delivered; times since the epoch.
 */
public class FailoverClient {
    public static void main(String[] args) throws Exception {
        System.setProperty("rocketmq.client.logLevel", "ERROR");
        String namesrv = args[0], topic = args[1], group = args[2];
        if (args[3].equals("produce")) {
            produce(namesrv, topic, group, Integer.parseInt(args[4]));
        } else {
            while (!consume(namesrv, topic, group, args[3].equals("orderly"))) {
                Thread.sleep(1000);  // a cold client on a busy machine times out
            }
        }
        Thread.currentThread().join();
    }

    private static void produce(String namesrv, String topic, String group, int rate) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(group + "-" + ProcessHandle.current().pid());
        producer.start();
        ExecutorService senders = Executors.newFixedThreadPool(64);
        ScheduledExecutorService clock = Executors.newSingleThreadScheduledExecutor();
        AtomicLong number = new AtomicLong();
        long warmUntil = System.currentTimeMillis() + 5000;  // a cold client on a busy machine would only time out
        AtomicLong tick = new AtomicLong();
        clock.scheduleAtFixedRate(() -> {
            if (System.currentTimeMillis() < warmUntil && tick.getAndIncrement() % 20 != 0) {
                return;
            }
            long n = number.getAndIncrement();
            senders.execute(() -> send(producer, topic, n));
        }, 0, 1_000_000 / rate, TimeUnit.MICROSECONDS);
    }

    private static void send(DefaultMQProducer producer, String topic, long n) {
        try {
            byte[] body = (n + " " + now()).getBytes(StandardCharsets.UTF_8);
            SendResult result = producer.send(new Message(topic, body));
            say(result.getSendStatus() == SendStatus.SEND_OK ? "A " + n + " " + now() : "F " + n + " " + now() + " " + result.getSendStatus());
        } catch (Throwable error) {
            say("F " + n + " " + now() + " " + String.valueOf(error.getMessage()).replace('\n', ' '));
        }
    }

    private static boolean consume(String namesrv, String topic, String group, boolean orderly) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(group + "-" + ProcessHandle.current().pid());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                got(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                got(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        try {
            consumer.start();
        } catch (Exception error) {
            consumer.shutdown();
            return false;
        }
        return true;
    }

    private static void got(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            say("G " + new String(message.getBody(), StandardCharsets.UTF_8) + " " + now() + " " + message.getBrokerName() + "/" + message.getQueueId() + " " + message.getQueueOffset());
        }
    }

    private static long now() {
        java.time.Instant at = java.time.Instant.now();
        return at.getEpochSecond() * 1_000_000 + at.getNano() / 1000;
    }

    private static void say(String line) {
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }
}
