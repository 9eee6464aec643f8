import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.security.Permission;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin's commands one after another in one JVM, each as its main method would.
 *
 * <p>A line of input is `limit in ms`, TAB, words divided by TAB; a line of output is what was printed, in Base64.
 * `!push GROUP TOPIC`, `!produce GROUP TOPIC KEY COUNT` and `!user NAME SECRET` are the clients and the signer that
 * commands look at; they stay.
 */
public final class Driver {
    private static final PrintStream OUT = System.out;
    private static final long ENDS_WITHIN_MS = 10_000;
    private static RPCHook hook;
    private static final List<Object> KEPT = new ArrayList<>();

    private static final class Exit extends SecurityException {
        Exit(int status) {
            super("exit " + status);
        }
    }

    @SuppressWarnings("removal")
    public static void main(String[] args) throws Exception {
        System.setSecurityManager(new SecurityManager() {
            @Override
            public void checkExit(int status) {
                throw new Exit(status);
            }

            @Override
            public void checkPermission(Permission permission) {
            }

            @Override
            public void checkPermission(Permission permission, Object context) {
            }
        });
        System.setProperty("rocketmq.namesrv.addr", args[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<String> words = new ArrayList<>(Arrays.asList(line.split("\t", -1)));
            long limit = Long.parseLong(words.remove(0));
            OUT.println(Base64.getEncoder().encodeToString(run(words, limit).getBytes(StandardCharsets.UTF_8)));
            OUT.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String run(List<String> words, long limit) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(stream);
        System.setErr(stream);
        Thread worker = new Thread(() -> {
            try {
                if (words.get(0).startsWith("!")) {
                    special(words);
                } else {
                    forgetCommands();
                    MQAdminStartup.main0(words.toArray(new String[0]), hook);
                }
            } catch (Exit exit) {
                System.out.println(exit.getMessage());
            } catch (Throwable error) {
                error.printStackTrace();
            }
        });
        worker.start();
        await(worker, limit);
        if (worker.isAlive()) {
            worker.interrupt();
            await(worker, ENDS_WITHIN_MS);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    private static void await(Thread worker, long limit) throws InterruptedException {
        long end = System.currentTimeMillis() + limit;
        while (worker.isAlive() && System.currentTimeMillis() < end) {
            worker.join(20);
            hasten(worker);
        }
    }

    /** A client that shuts down waits up to three seconds for a thread that sleeps; the thread bears to be woken. */
    private static void hasten(Thread worker) {
        for (StackTraceElement frame : worker.getStackTrace()) {
            if (frame.getClassName().equals("org.apache.rocketmq.common.ServiceThread") && frame.getMethodName().equals("shutdown")) {
                Thread[] threads = new Thread[Thread.activeCount() + 64];
                for (int i = Thread.enumerate(threads) - 1; i >= 0; i--) {
                    if (threads[i].getName().equals("NettyEventExecutor")) {
                        threads[i].interrupt();
                    }
                }
                return;
            }
        }
    }

    private static void special(List<String> words) throws Exception {
        switch (words.get(0)) {
            case "!user":
                hook = new AclClientRPCHook(new SessionCredentials(words.get(1), words.get(2)));
                break;
            case "!push":
                DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(words.get(1), hook);
                consumer.subscribe(words.get(2), "*");
                consumer.setConsumeFromWhere(org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
                consumer.registerMessageListener(
                    (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
                consumer.start();
                KEPT.add(consumer);
                break;
            case "!produce":
                DefaultMQProducer producer = new DefaultMQProducer(words.get(1), hook);
                producer.setInstanceName("driver");
                producer.start();
                KEPT.add(producer);
                for (int i = 0; i < Integer.parseInt(words.get(4)); i++) {
                    Message message = new Message(words.get(2), "TagA", words.get(3) + i, ("body" + i).getBytes());
                    int queue = i;
                    SendResult sent = producer.send(message, (queues, ignored, none) -> queues.get(queue % queues.size()), null);
                    System.out.println(sent.getOffsetMsgId() + " " + message.getProperty("UNIQ_KEY"));
                }
                producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
                break;
            default:
                throw new IllegalArgumentException(words.get(0));
        }
    }

    /** The tool keeps its commands, with the clients they have shut down, in a static list and adds to it at every start. */
    private static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
