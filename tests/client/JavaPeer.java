import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The real Java client as a peer of ours, until its input ends: JavaPeer NAMESERVER TOPIC respond | request | read.
 *
 * <p>respond: replies "java: BODY" to each request. request: asks "BODY" for each line of input, prints the replies,
 * and stays until it is killed. read: prints body, tag and keys of each message.
 */
public class JavaPeer {
  public static void main(String[] args) throws Exception {
    String namesrv = args[0], topic = args[1], mode = args[2];
    DefaultMQProducer producer = new DefaultMQProducer("java-peer-" + mode);
    producer.setNamesrvAddr(namesrv);
    producer.start();
    if (mode.equals("request")) {
      request(producer, topic);
    } else {
      consume(namesrv, topic, (messages, context) -> {
        for (MessageExt message : messages) serve(producer, mode, message);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
      });
      while (System.in.read() >= 0) {}
    }
    System.exit(0);
  }

  static void request(DefaultMQProducer producer, String topic) throws Exception {
    producer.getDefaultMQProducerImpl().getMqClientFactory().updateTopicRouteInfoFromNameServer(topic);
    while (!producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock()) {
      Thread.sleep(100); // another heartbeat is under way, perhaps one that knew no broker yet
    }
    System.out.println("ready");
    // with a callback: the blocking form of 5.3.3 gives up as soon as the request itself is acknowledged
    for (String line : new String(System.in.readAllBytes(), StandardCharsets.UTF_8).split("\n")) {
      CountDownLatch replied = new CountDownLatch(1);
      producer.request(new Message(topic, line.getBytes(StandardCharsets.UTF_8)), new RequestCallback() {
        @Override
        public void onSuccess(Message reply) {
          // 5.3.3 calls this for the broker's acknowledgement, too, with the reply if that was faster
          if (reply == null || replied.getCount() == 0) return;
          System.out.println("reply " + new String(reply.getBody(), StandardCharsets.UTF_8));
          replied.countDown();
        }

        @Override
        public void onException(Throwable e) {
          System.out.println("reply failed " + e);
          replied.countDown();
        }
      }, 60_000);
      replied.await(60, TimeUnit.SECONDS);
    }
    TimeUnit.SECONDS.sleep(120); // gone at once, it would not answer the broker that pushed the last reply
  }

  static void consume(String namesrv, String topic, MessageListenerConcurrently listener) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-peer-of-" + topic);
    consumer.setNamesrvAddr(namesrv);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.subscribe(topic, "*");
    consumer.registerMessageListener(listener);
    consumer.start();
    System.out.println("ready");
  }

  static void serve(DefaultMQProducer producer, String mode, MessageExt message) {
    String body = new String(message.getBody(), StandardCharsets.UTF_8);
    if (mode.equals("read")) {
      System.out.println("message " + body.length() + " " + body.substring(0, Math.min(20, body.length())) + " "
          + message.getTags() + " " + message.getKeys());
      return;
    }
    try {
      producer.send(MessageUtil.createReplyMessage(message, ("java: " + body).getBytes(StandardCharsets.UTF_8)));
    } catch (Exception e) {
      System.out.println("failed " + e);
    }
  }
}
