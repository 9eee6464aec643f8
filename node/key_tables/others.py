"""Keys of RocketMQ's NettyServerConfig, NettyClientConfig, NamesrvConfig, ControllerConfig and AuthConfig."""

NETTY_TABLE = """
bindAddress|text|0.0.0.0|*|Address of this machine at which the process listens.
channelNotActiveInterval|long|60000|j|Not read by upstream any more.
clientAsyncSemaphoreValue|int|65535|j|Most asynchronous requests of the process to others.
clientCallbackExecutorThreads|int|<from the number of cores>|j|Threads that run call-backs of answers.
clientChannelMaxIdleTimeSeconds|int|120|d|Idle seconds after which a connection to another server is closed.
clientCloseSocketIfTimeout|bool|true|d|Close a connection whose answer came too late.
clientOnewaySemaphoreValue|int|65535|j|Most one-way requests of the process to others.
clientPooledByteBufAllocatorEnable|bool|false|j|Take buffers of outgoing connections from a pool.
clientSocketRcvBufSize|int|0|j|Bytes of the system's receive buffer of outgoing connections; 0 the system's choice.
clientSocketSndBufSize|int|0|j|Bytes of the system's send buffer of outgoing connections; 0 the system's choice.
clientWorkerThreads|int|4|j|Threads of outgoing connections.
connectTimeoutMillis|int|3000|d|Patience in ms for a connection to another server.
disableCallbackExecutor|bool|false|j|Run call-backs in the network's threads.
disableNettyWorkerGroup|bool|false|j|Run codecs in the network's threads.
enableReconnectForGoAway|bool|true|d|Connect again when a server says that it stops.
enableShutdownGracefully|bool|false|d|Tell clients to go before the process stops.
listenPort|int|<10911, for a nameserver 9876>|*|Port at which clients are served.
maxReconnectIntervalTimeSeconds|long|60|d|Longest pause in seconds between two connection attempts.
scanAvailableNameSrv|bool|true|d|Probe regularly which nameservers answer.
serverAsyncSemaphoreValue|int|64|j|Most asynchronous requests of the server to clients.
serverCallbackExecutorThreads|int|0|j|Threads that run call-backs of the server.
serverChannelMaxIdleTimeSeconds|int|120|*|Idle seconds after which a client's connection is closed.
serverNettyWorkerGroupEnable|bool|true|j|Run codecs in threads of their own.
serverOnewaySemaphoreValue|int|256|j|Most one-way requests of the server to clients.
serverPooledByteBufAllocatorEnable|bool|true|j|Take buffers of the server from a pool.
serverSelectorThreads|int|3|j|Threads that wait for sockets.
serverSocketBacklog|int|1024|j|Connections that the system lets wait.
serverSocketRcvBufSize|int|0|j|Bytes of the system's receive buffer of the server; 0 the system's choice.
serverSocketSndBufSize|int|0|j|Bytes of the system's send buffer of the server; 0 the system's choice.
serverWorkerThreads|int|8|j|Threads that decode and encode.
shutdownWaitTimeSeconds|int|30|d|Seconds that a stopping server waits for clients to go.
socksProxyConfig|text|{}|f|Proxies for outgoing connections.
useEpollNativeSelector|bool|false|j|Wait for sockets by Linux' epoll through native code.
useTLS|bool|false|*|Encrypt outgoing connections.
tls.client.authServer|bool|false|*|Verify the certificates of servers that this process connects to.
tls.client.certPath|text||*|Certificate that outgoing connections show to a server which asks for one.
tls.client.keyPassword|text||*|Password of the key of tls.client.certPath.
tls.client.keyPath|text||*|Key of tls.client.certPath.
tls.client.trustCertPath|text||*|Authorities of the servers' certificates.
tls.server.authClient|bool|false|d|Verify certificates that clients show.
tls.server.certPath|text||*|Certificate of the listeners, with its chain.
tls.server.keyPassword|text||*|Password of the listeners' key.
tls.server.keyPath|text||*|Key of the listeners.
tls.server.mode|disabled/permissive/enforcing|permissive|*|Whether the listeners take TLS, TLS and plain, or TLS only.
tls.server.need.client.auth|none/optional/require|none|*|Whether clients are asked for a certificate.
tls.server.trustCertPath|text||*|Authorities of the clients' certificates.
tls.test.mode.enable|bool|true|d|Serve with a certificate made at the start, and trust every server.
writeBufferHighWaterMark|int|0|j|Unsent bytes from which a connection counts as not writable; 0 the library's choice.
writeBufferLowWaterMark|int|0|j|Unsent bytes below which a connection counts as writable again.
"""

NAMESRV_TABLE = """
clientRequestThreadPoolNums|int|8|j|Threads that answer route requests.
clientRequestThreadPoolQueueCapacity|int|50000|j|Waiting route requests before the nameserver refuses more.
clusterTest|bool|false|f|Ask a product environment for topics that are not known.
configBlackList|text|configBlackList;configStorePath;kvConfigPath|*|Keys that may not be changed at run time.
configStorePath|text|<home folder/namesrv/namesrv.properties>|d|Where upstream writes settings changed at run time.
defaultThreadPoolNums|int|16|j|Threads that handle all other requests.
defaultThreadPoolQueueCapacity|int|10000|j|Waiting other requests before the nameserver refuses more.
deleteTopicWithBrokerRegistration|bool|false|*|A master's registration removes the topics that it does not name.
enableAllTopicList|bool|true|*|Answer the request for all topics.
enableControllerInNamesrv|bool|false|f|Run a controller inside the nameserver.
enableTopicList|bool|true|*|Answer requests for topics by cluster and unit.
kvConfigPath|text|<home folder/namesrv/kvConfig.json>|*|File of the KV configuration.
needWaitForService|bool|false|*|Refuse routes for a while after the start, until brokers have registered.
notifyMinBrokerIdChanged|bool|false|*|Tell the members of a broker name when the smallest id among them changes.
orderMessageEnable|bool|false|*|Put the KV entry of an ordered topic into its route.
productEnvName|text|center|f|Name of the product environment that clusterTest asks.
returnOrderTopicConfigToBroker|bool|true|*|Answer registrations with the KV entries of ordered topics.
rocketmqHome|text|<environment ROCKETMQ_HOME>|d|Folder in which upstream is installed.
scanNotActiveBrokerInterval|long|5000|*|Time in ms between two looks for silent brokers.
supportActingMaster|bool|false|*|Show the smallest id as master while a broker name has none.
unRegisterBrokerQueueCapacity|int|3000|*|Waiting removals of brokers before the nameserver refuses more.
waitSecondsForService|int|45|*|Seconds for which needWaitForService refuses routes.
"""

CONTROLLER_TABLE = """
controllerDLegerGroup|text||f|Name of the controllers' group.
controllerDLegerPeers|text||f|Members of the controllers' group.
controllerDLegerSelfId|text||f|Which of the members this controller is.
controllerRequestThreadPoolQueueCapacity|int|50000|j|Waiting requests before the controller refuses more.
controllerStorePath|text|<home folder/DLedgerController>|f|Folder of the controller's log.
controllerThreadPoolNums|int|16|j|Threads of the controller.
controllerType|text|DLedger|f|How the controllers agree.
electMasterMaxRetryCount|int|3|f|Attempts to elect a master.
enableElectUncleanMaster|bool|false|f|Elect a master from outside the in-sync set when nobody else is left.
jraftConfig|text||f|Settings of the controllers' JRaft.
mappedFileSize|int|1073741824|f|Bytes of a file of the controllers' log.
notifyBrokerRoleChanged|bool|true|f|Tell brokers of their new role.
processReadEvent|bool|false|f|Let reads go through the controllers' log.
scanInactiveMasterInterval|long|5000|f|Time in ms between two looks for lost masters.
"""

AUTH_TABLE = """
aclCacheExpiredSecond|int|600|d|Seconds for which permissions are cached.
aclCacheMaxNum|int|1000|d|Most permissions in the cache.
aclCacheRefreshSecond|int|60|d|Seconds after which a cached permission is read again.
authConfigPath|text||d|Folder of users and permissions.
authenticationEnabled|bool|false|*|Ask clients who they are.
authenticationMetadataProvider|text||d|Java class that keeps users.
authenticationProvider|text||d|Java class that checks users.
authenticationStrategy|text||d|Java class that decides when users are checked.
authenticationWhitelist|text||*|Request codes that need no user.
authorizationEnabled|bool|false|*|Check what clients may do.
authorizationMetadataProvider|text||d|Java class that keeps permissions.
authorizationProvider|text||d|Java class that checks permissions.
authorizationStrategy|text||d|Java class that decides when permissions are checked.
authorizationWhitelist|text||*|Request codes that need no permission.
clusterName|text||f|Cluster that access control belongs to; upstream sets it itself.
configName|text||f|Name of the configuration of access control; upstream sets it itself.
initAuthenticationUser|text||*|First user and password.
innerClientAuthenticationCredentials|text||*|User and password of the brokers among themselves.
migrateAuthFromV1Enabled|bool|false|d|Take over users and permissions of the old access control.
statefulAuthenticationCacheExpiredSecond|int|60|d|Seconds for which a connection's user is cached.
statefulAuthenticationCacheMaxNum|int|10000|d|Most connections' users in the cache.
statefulAuthorizationCacheExpiredSecond|int|60|d|Seconds for which a connection's permissions are cached.
statefulAuthorizationCacheMaxNum|int|10000|d|Most connections' permissions in the cache.
userCacheExpiredSecond|int|600|d|Seconds for which users are cached.
userCacheMaxNum|int|1000|d|Most users in the cache.
userCacheRefreshSecond|int|60|d|Seconds after which a cached user is read again.
"""
