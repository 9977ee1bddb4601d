// A tenant with valid credentials that tries to do harm over AMQP 1.0. Each line of standard
// input names an attempt, and each answer is a line of JSON. The password is in the first line,
// so that no process list shows it.
const rhea = require(process.env.TEST_NODE_PATH + "/rhea");
const types = rhea.types;

const key = (app, seconds = 0) =>
  `delay.${seconds.toString(2).padStart(28, "0").match(/.{4}/g).join(".")}.${app}`;
const pattern = (app) => `delay.${"*.".repeat(7)}${app}`;
const to = (exchange, routingKey) => `/exchanges/${exchange}/${encodeURIComponent(routingKey)}`;
const annotations = (message_annotations) => ({ message_annotations });
const header = (h) => ({ application_properties: { h } });
const data = (bytes) => rhea.message.data_section(Buffer.from(bytes));
const int = types.wrap_long;

// An attempt: what it opens on its own connection, and its reaction to each event. If a
// reaction returns a value, that is the result.
const publish = (target, message = {}) => ({
  open: (connection) => { connection.open_sender({ target }); },
  sendable: ({ sender }) => { sender.send({ durable: true, body: data("harm"), ...message }); },
  accepted: () => null,
});
const consume = (source) => ({
  open: (connection) => {
    connection.open_receiver({ credit_window: 0, autoaccept: false, source });
  },
  receiver_open: ({ receiver }) => (receiver.source?.address ? null : undefined),
});

// A request to the broker's management node, over a pair of links with the same name.
const manage = (method, path, body = null) => {
  const settings = {
    name: "manager", properties: { paired: true }, snd_settle_mode: 1, credit_window: 0,
    source: { address: "/management" }, target: { address: "/management" },
  };
  let sender;
  return {
    open: (connection) => { sender = connection.open_sender(settings); },
    sender_open: ({ connection }) => { connection.open_receiver(settings); },
    receiver_open: ({ receiver }) => {
      receiver.add_credit(1);
      // After the credit has been written.
      setImmediate(() => sender.send({ message_id: "1", subject: method, to: path, reply_to: "$me", body }));
    },
    message: ({ message }) => (message.subject < "400" ? null : `HTTP ${message.subject} ${message.body}`),
  };
};
const queue = (more) => ({ durable: true, exclusive: false, auto_delete: false, arguments: more });
const exchange = (type, more = {}) => ({ type, durable: true, auto_delete: false, internal: false, arguments: more });
const binding = (source, binding_key, destination_queue) =>
  ({ source, binding_key, destination_queue, arguments: {} });
const coded = (text) => encodeURIComponent(text).replaceAll("*", "%2A");
const segment = (source, destination, routingKey, kind = "dstq") =>
  `/bindings/src=${source};${kind}=${destination};key=${coded(routingKey)};args=`;

const attempts = (own, victim) => {
  // A key for each of the three lowest levels.
  const copies = [0, 1, 2].map((level) => key(own, 1 << level));
  const steal = { "x-dead-letter-exchange": "delay", "x-dead-letter-routing-key": key(victim) };
  const one = to("delay", key(own, 1));
  const death = {
    queue: "delay.level.00", reason: types.wrap_symbol("expired"), count: types.wrap_ulong(7),
    time: types.wrap_timestamp(1), exchange: "delay", "routing-keys": ["x"],
  };
  const year = Date.now() + 31_557_600_000;
  const [recall, recalled, journal, pass] =
    ["recall", "recalled", "journal", "pass"].map((kind) => (app) => `delay.${kind}.${app}`);
  const [mine, theirs] = [`${key(own, 3600)}.~.mine`, `${key(victim, 3600)}.~.theirs`];
  return {
    "publish a char to its own key": publish(one, header(types.wrap_char(0x41))),
    "publish a uuid to its own key": publish(one, header(types.wrap_uuid(Buffer.alloc(16, 7)))),
    "publish a char to the retry exchange under its own key":
      publish(to("delay.retry", own), header(types.wrap_char(0x41))),
    "publish a uuid to the retry exchange under its own key":
      publish(to("delay.retry", own), header(types.wrap_uuid(Buffer.alloc(16, 7)))),
    "publish another key to the retry exchange": publish(to("delay.retry", victim)),
    "publish another key to the parked exchange": publish(to("delay.parked", victim)),
    "publish another application's key": publish(to("delay", key(victim))),
    "publish without a key, to the exchange alone": publish("/exchanges/delay"),
    "publish another application's key to an address in the message":
      publish({}, { to: to("delay", key(victim)) }),
    "publish another application's key by an old address": publish(`/exchange/delay/${key(victim)}`),
    "publish another key in the annotation `x-cc`":
      publish(to("delay", key(own)), annotations({ "x-cc": [key(victim)] })),
    "publish another key in the annotation `CC`":
      publish(to("delay", key(own)), annotations({ CC: [key(victim)] })),
    "publish another key in the application properties `CC` and `BCC`":
      publish(to("delay", key(own)), { application_properties: { CC: [key(victim)], BCC: [key(victim)] } }),
    "multiply its messages with keys of its own in the annotation `x-cc`":
      publish(one, annotations({ "x-cc": copies })),
    "publish a key of wildcards": publish(to("delay", pattern(own))),
    "publish a truncated key": publish(to("delay", `delay.${"0000.".repeat(6)}${own}`)),
    "publish its own key with a line feed at the end": publish(to("delay", `${key(own)}\n`)),
    "publish a longer delay than it may": publish(to("delay", key(own, 3601))),
    "publish to dispatch, past all delays": publish(to("delay.dispatch", key(victim))),
    "publish to a level's queue": publish("/queues/delay.level.00"),
    "publish to another application's queue": publish(`/queues/${victim}`),
    "publish in another user's name (`user-id`)": publish(to("delay", key(own)), { user_id: Buffer.from("guest") }),
    "publish with a forged annotation `x-opt-deaths`":
      publish(one, annotations({ "x-opt-deaths": types.wrap_array([types.wrap_map(death)], 0xd1) })),
    "publish with an `x-opt-deaths` that no broker writes": publish(one, annotations({ "x-opt-deaths": [int(1), "x", death] })),
    "publish with a forged annotation `x-death`": publish(one, annotations({ "x-death": [death] })),
    "publish with an `x-death` that no broker writes": publish(one, annotations({ "x-death": [int(1), "x"] })),
    "publish with an application property `x-death`": publish(one, { application_properties: { "x-death": [int(1)] } }),
    "publish with the annotation `x-opt-delivery-time`, a year from now":
      publish(one, annotations({ "x-opt-delivery-time": types.wrap_timestamp(year) })),
    "publish with the annotation `x-opt-delivery-delay`, a year":
      publish(one, annotations({ "x-opt-delivery-delay": types.wrap_ulong(31_557_600_000) })),
    "publish with forged annotations of the broker's":
      publish(one, annotations({
        "x-exchange": "delay.dispatch", "x-routing-key": key(victim), "x-first-death-queue": victim,
        "x-acquired-count": int(99), "x-delivery-count": int(99), "x-last-death-reason": "expired",
      })),
    "publish with the header `ttl`": publish(one, { ttl: 0 }),
    "publish with the highest priority": publish(one, { priority: 255 }),
    "publish transient messages": publish(one, { durable: false }),
    "consume another application's queue": consume(`/queues/${victim}`),
    "consume a level": consume("/queues/delay.level.00"),
    "consume the unroutable queue": consume("/queues/delay.unroutable"),
    "consume the retry queue": consume("/queues/delay.retry"),
    "consume the parked queue": consume("/queues/delay.parked"),
    "consume dispatch by an old address, which declares a queue": consume("/exchange/delay.dispatch/%23"),
    "consume its own queue and acknowledge nothing": consume(`/queues/${own}`),
    "consume a queue that the broker makes for it (dynamic)": consume({ dynamic: true }),
    "declare a queue by an old address": consume("/queue/harm"),
    "ask how long another application's queue is": manage("GET", `/queues/${victim}`),
    "ask how another application is bound": manage("GET",
      `/bindings?dstq=${victim}&src=delay.dispatch&key=${coded(pattern(victim))}`),
    "declare a queue that dead-letters another key to the entry": manage("PUT", "/queues/harm",
      queue({ "x-queue-type": "quorum", "x-message-ttl": int(0), ...steal })),
    "declare its own queue again with a dead-letter exchange": manage("PUT", `/queues/${own}`,
      queue({ "x-queue-type": "quorum", ...steal })),
    "declare a queue for its connection alone": manage("PUT", "/queues/harm", { exclusive: true }),
    "declare an exchange with dispatch as its alternate": manage("PUT", "/exchanges/harm",
      exchange("fanout", { "alternate-exchange": "delay.dispatch" })),
    "declare the entry again as another type": manage("PUT", "/exchanges/delay", exchange("fanout")),
    "bind its queue under another application's key":
      manage("POST", "/bindings", binding("delay.dispatch", pattern(victim), own)),
    "bind its queue under every key": manage("POST", "/bindings", binding("delay.dispatch", "#", own)),
    "bind its queue to a level": manage("POST", "/bindings", binding("delay.level.00", "#", own)),
    "bind the entry to dispatch, so that messages go round": manage("POST", "/bindings",
      { source: "delay.dispatch", binding_key: pattern(own), destination_exchange: "delay", arguments: {} }),
    "unbind another application": manage("DELETE", segment("delay.dispatch", victim, pattern(victim))),
    "unbind a level": manage("DELETE", segment("delay", "delay.level.00", "#")),
    "purge a level": manage("DELETE", "/queues/delay.level.00/messages"),
    "purge another application's queue": manage("DELETE", `/queues/${victim}/messages`),
    "delete a level": manage("DELETE", "/queues/delay.level.00"),
    "delete another application's queue": manage("DELETE", `/queues/${victim}`),
    "delete its own queue": manage("DELETE", `/queues/${own}`),
    "delete the dispatch exchange": manage("DELETE", "/exchanges/delay.dispatch"),
    "recall another application's message":
      manage("POST", "/bindings", binding(recall(victim), theirs, recalled(victim))),
    "undo another application's recall": manage("DELETE", segment(recall(victim), recalled(victim), theirs)),
    "recall another application's message into its own recalled queue":
      manage("POST", "/bindings", binding(recall(victim), theirs, recalled(own))),
    "send its own recalled messages to another application":
      manage("POST", "/bindings", binding(recall(own), mine, victim)),
    "fill another application's recalled queue with its own messages":
      manage("POST", "/bindings", binding(recall(own), mine, recalled(victim))),
    "pass its own recalled messages to dispatch": manage("POST", "/bindings",
      { source: recall(own), binding_key: mine, destination_exchange: "delay.dispatch", arguments: {} }),
    "ask whether another application's message is recalled": manage("GET",
      `/bindings?dstq=${recalled(victim)}&src=${recall(victim)}&key=${coded(theirs)}`),
    "unbind another application's recalls from dispatch":
      manage("DELETE", segment("delay.dispatch", recall(victim), `${pattern(victim)}.~.*`, "dste")),
    "unbind what passes to another application": manage("DELETE", segment(pass(victim), victim, "")),
    "consume what another application has recalled": consume(`/queues/${recalled(victim)}`),
    "purge what another application has recalled": manage("DELETE", `/queues/${recalled(victim)}/messages`),
    "delete another application's recalled queue": manage("DELETE", `/queues/${recalled(victim)}`),
    "delete another application's exchange for recalls": manage("DELETE", `/exchanges/${recall(victim)}`),
    "publish another application's key with an id": publish(to("delay", theirs)),
    "publish past all delays to another application's exchange for recalls":
      publish(to(recall(victim), theirs)),
    "publish past all delays to what passes to another application": publish(to(pass(victim), theirs)),
    "publish to another application's recalled queue": publish(`/queues/${recalled(victim)}`),
    "read another application's journal": consume(`/queues/${journal(victim)}`),
    "publish to another application's journal past the entry": publish(`/queues/${journal(victim)}`),
    "purge another application's journal": manage("DELETE", `/queues/${journal(victim)}/messages`),
    "delete another application's journal": manage("DELETE", `/queues/${journal(victim)}`),
    "delete its own journal": manage("DELETE", `/queues/${journal(own)}`),
    "bind its queue like another application's journal":
      manage("POST", "/bindings", binding("delay", pattern(victim), own)),
    "bind its journal to what is due": manage("POST", "/bindings", binding("delay.dispatch", "#", journal(own))),
    "send its recalled messages to another application's journal":
      manage("POST", "/bindings", binding(recall(own), mine, journal(victim))),
    "unbind another application's journal":
      manage("DELETE", segment("delay", journal(victim), pattern(victim))),
  };
};

// The broker's refusal, or null.
const trying = (setup, attempt) => new Promise((resolve) => {
  const container = rhea.create_container();
  let connection, said;
  const say = (what) => {
    if (said) return;
    said = true;
    if (connection.is_open()) connection.close();
    resolve(what);
  };
  for (const event of ["sendable", "accepted", "sender_open", "receiver_open", "message"]) {
    container.on(event, (context) => {
      const what = attempt[event]?.(context);
      if (what !== undefined) say(what);
    });
  }
  for (const [event, of] of Object.entries({
    connection_error: "connection", session_error: "session", sender_error: "sender", receiver_error: "receiver",
  })) {
    container.on(event, (context) => say(`${context[of].error.condition} ${context[of].error.description}`));
  }
  for (const event of ["rejected", "released", "modified"]) {
    container.on(event, ({ delivery }) => say(`${event} ${JSON.stringify(delivery.remote_state ?? {})}`));
  }
  container.on("disconnected", ({ error }) => say(`disconnected ${error ?? ""}`));
  container.on("connection_open", (context) => attempt.open(context.connection));
  container.on("protocol_error", (error) => say(`not spoken: ${error}`));
  container.on("error", (error) => say(`error: ${error}`));
  connection = container.connect({
    host: "127.0.0.1", port: setup.port, username: setup.user, password: setup.password,
    hostname: `vhost:${setup.vhost}`, reconnect: false,
  });
});

(async () => {
  let setup, tries;
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    if (setup) {
      console.log(JSON.stringify(await trying(setup, tries[line])));
      continue;
    }
    setup = JSON.parse(line);
    tries = attempts(setup.own, setup.victim);
    console.log(JSON.stringify(Object.keys(tries)));
  }
})();
