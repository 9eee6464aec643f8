import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.message.MessageQueue;

/** Made allocation_vectors.json with rocketmq-client 5.3.3 (its lines in brackets, commas between). */
public class AllocationVectors {
  static final String[] BROKERS = {"broker-a", "broker-b", "B", "broker-\u00e9", "broker-\ud83d\ude00", "broker-\uff5e"};

  public static void main(String[] args) {
    AllocateMessageQueueAveragely strategy = new AllocateMessageQueueAveragely();
    Random random = new Random(7);
    for (int k = 0; k < 50; k++) {
      List<MessageQueue> queues = queues(random);
      List<String> members = members(random);
      Collections.shuffle(queues, random);
      Collections.shuffle(members, random);
      List<MessageQueue> sortedQueues = new ArrayList<>(queues);
      Collections.sort(sortedQueues);
      List<String> sortedMembers = new ArrayList<>(members);
      Collections.sort(sortedMembers);
      StringBuilder out = new StringBuilder("{\"members\":[");
      for (int i = 0; i < members.size(); i++) out.append(i > 0 ? "," : "").append(text(members.get(i)));
      out.append("],\"queues\":").append(json(queues)).append(",\"shares\":{");
      for (int i = 0; i < members.size(); i++) {
        List<MessageQueue> share = strategy.allocate("g", members.get(i), sortedQueues, sortedMembers);
        out.append(i > 0 ? "," : "").append(text(members.get(i))).append(":").append(json(share));
      }
      System.out.println(out + "}}");
    }
  }

  static List<MessageQueue> queues(Random random) {
    List<MessageQueue> queues = new ArrayList<>();
    int brokerCount = 1 + random.nextInt(BROKERS.length);
    int first = random.nextInt(BROKERS.length);
    for (int b = 0; b < brokerCount; b++) {
      int count = random.nextInt(6);
      for (int q = 0; q < count; q++) queues.add(new MessageQueue("T", BROKERS[(first + b) % BROKERS.length], q));
    }
    if (queues.isEmpty()) queues.add(new MessageQueue("T", "B", 0));
    return queues;
  }

  static List<String> members(Random random) {
    List<String> members = new ArrayList<>();
    int count = 1 + random.nextInt(9);
    for (int c = 0; c < count; c++) {
      String mark = random.nextInt(4) == 0 ? "\ud83d\ude00" : random.nextInt(4) == 0 ? "\uff5e" : "x";
      members.add("10.0.0." + random.nextInt(200) + "@" + (1 + random.nextInt(99999)) + "#" + mark + c);
    }
    return members;
  }

  static String text(String s) {
    StringBuilder out = new StringBuilder("\"");
    for (char c : s.toCharArray()) out.append(c < 128 ? String.valueOf(c) : String.format("\\u%04x", (int) c));
    return out + "\"";
  }

  static String json(List<MessageQueue> queues) {
    StringBuilder out = new StringBuilder("[");
    for (MessageQueue q : queues) {
      out.append(out.length() > 1 ? "," : "").append("[").append(text(q.getBrokerName())).append(",");
      out.append(q.getQueueId()).append("]");
    }
    return out + "]";
  }
}
