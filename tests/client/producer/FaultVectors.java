import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.impl.producer.TopicPublishInfo;
import org.apache.rocketmq.client.latency.LatencyFaultTolerance;
import org.apache.rocketmq.client.latency.MQFaultStrategy;
import org.apache.rocketmq.common.message.MessageQueue;

/** Made fault_vectors.json with rocketmq-client 5.3.3 (without what logback says): [latency, isolated, avoided ms], and which of three brokers may be chosen. */
public class FaultVectors {
  static final long[] LATENCIES = {
    0, 1, 49, 50, 51, 99, 100, 101, 549, 550, 551, 1799, 1800, 2999, 3000, 4999, 5000, 9999, 10000, 14999, 15000, 600000
  };
  static long avoided;
  static int available;
  static int reachable;

  @SuppressWarnings("unchecked")
  public static void main(String[] args) throws Exception {
    InvocationHandler record = (proxy, method, given) -> {
      switch (method.getName()) {
        case "updateFaultItem": avoided = (Long) given[2]; return null;
        case "isAvailable": return (available >> index((String) given[0]) & 1) == 1;
        case "isReachable": return (reachable >> index((String) given[0]) & 1) == 1;
        default: return method.getReturnType() == boolean.class ? false : null;
      }
    };
    LatencyFaultTolerance<String> tolerance = (LatencyFaultTolerance<String>) Proxy.newProxyInstance(
        FaultVectors.class.getClassLoader(), new Class<?>[] {LatencyFaultTolerance.class}, record);
    ClientConfig config = new ClientConfig();
    config.setSendLatencyEnable(true);
    MQFaultStrategy strategy = new MQFaultStrategy(config, null, null);
    Field field = MQFaultStrategy.class.getDeclaredField("latencyFaultTolerance");
    field.setAccessible(true);
    field.set(strategy, tolerance);
    List<String> durations = new ArrayList<>();
    for (long latency : LATENCIES) {
      for (boolean isolated : new boolean[] {false, true}) {
        strategy.updateFaultItem("b0", latency, isolated, true);
        durations.add("[" + latency + "," + isolated + "," + avoided + "]");
      }
    }
    List<String> choices = new ArrayList<>();
    for (available = 0; available < 8; available++) {
      for (reachable = 0; reachable < 8; reachable++) {
        for (int last = -1; last < 3; last++) {
          choices.add("[" + available + "," + reachable + "," + last + "," + choose(strategy, last) + "]");
        }
      }
    }
    System.out.println("{\"durations\":[" + String.join(",", durations) + "],");
    System.out.println("\"choices\":[" + String.join(",\n", choices) + "]}");
    System.exit(0);
  }

  static TreeSet<Integer> choose(MQFaultStrategy strategy, int last) {
    TopicPublishInfo info = new TopicPublishInfo();
    List<MessageQueue> queues = new ArrayList<>();
    for (int b = 0; b < 3; b++) queues.add(new MessageQueue("T", "b" + b, 0));
    info.setMessageQueueList(queues);
    TreeSet<Integer> chosen = new TreeSet<>();
    for (int k = 0; k < 12; k++) {
      chosen.add(index(strategy.selectOneMessageQueue(info, last < 0 ? null : "b" + last, false).getBrokerName()));
    }
    return chosen;
  }

  static int index(String broker) {
    return broker.charAt(1) - '0';
  }
}
