import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's Java client for a drill: java DrillClient.java NAMESRV TOPIC GROUP produce|consume, until the end of its input.
 *
 * produce says "R" when it has started, reads "number body" and answers "A number status tries broker queue offset" for what is stored, "F number why"
 * for what is certainly not stored, else "I number why". consume prints "G broker queue offset body". Bodies are base64.
 * Each line begins with "@ ", since the client prints lines of its logging, too.
 * Settings are the client's defaults, but for one consuming thread, so that messages of a queue are told in their order.
 */
public class DrillClient {
    private static final int NO_NAMESERVER = 10004, NO_ROUTE = 10005;  // ClientErrorCode: found out before any try

    public static void main(String[] args) throws Exception {
        String namesrv = args[0], topic = args[1], group = args[2];
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        if (args[3].equals("produce")) {
            produce(namesrv, topic, group, input);
        } else {
            consume(namesrv, topic, group);
            while (input.readLine() != null) { }
        }
        System.exit(0);
    }

    private static void produce(String namesrv, String topic, String group, BufferedReader input) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        say("R");
        ExecutorService senders = Executors.newCachedThreadPool();  // no send waits for another one
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.split(" ");
            senders.execute(() -> send(producer, topic, words[0], Base64.getDecoder().decode(words[1])));
        }
    }

    private static void send(DefaultMQProducer producer, String topic, String number, byte[] body) {
        try {
            SendResult result = producer.send(new Message(topic, body));
            say("A " + number + " " + result.getSendStatus() + " " + (1 + producer.getRetryTimesWhenSendFailed()) + " "
                + result.getMessageQueue().getBrokerName() + " " + result.getMessageQueue().getQueueId() + " " + result.getQueueOffset());
        } catch (Throwable error) {
            int code = error instanceof MQClientException ? ((MQClientException) error).getResponseCode() : 0;
            say((code == NO_NAMESERVER || code == NO_ROUTE ? "F " : "I ") + number + " " + String.valueOf(error.getMessage()).replace('\n', ' '));
        }
    }

    private static void consume(String namesrv, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("G " + message.getBrokerName() + " " + message.getQueueId() + " " + message.getQueueOffset() + " "
                    + Base64.getEncoder().encodeToString(message.getBody()));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static void say(String line) {
        synchronized (System.out) {
            System.out.println("@ " + line);
            System.out.flush();
        }
    }
}
