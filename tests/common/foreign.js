// Publishes over AMQP 1.0, which has types that AMQP 0-9-1 cannot represent.
//
//     node foreign.js PORT VHOST ADDRESS KIND...
//
// The body and the id of each message are its kind. The program ends once all are accepted.
const rhea = require(process.env.TEST_NODE_PATH + "/rhea");
const types = rhea.types;
const [port, vhost, address, ...kinds] = process.argv.slice(2);
const header = (h) => ({ application_properties: { h } });
const annotation = (name, value) => ({ message_annotations: { [name]: value } });
const make = {
  char: () => header(types.wrap_char(0x41)),
  uuid: () => header(types.wrap_uuid(Buffer.alloc(16, 7))),
  nan: () => header(types.wrap_double(NaN)),
  decimal: () => header(new types.Decimal32(Buffer.alloc(4, 1))),
  longtype: () => ({ content_type: "x".repeat(300) }),
  ulong: () => header([types.wrap_ulong(5)]),
  array: () => header([types.wrap_array(["a"], 0xa1)]),
  described: () => header([types.described(types.wrap_symbol("x:y"), types.wrap_string("z"))]),
  numberkey: () => header(new Map([[7, "x"]])),
  longkey: () => header({ ["x".repeat(300)]: "x" }),
  annotation: () => annotation("x-opt-h", types.wrap_char(0x41)),
  deaths: () => annotation("x-opt-deaths", types.wrap_array([{ queue: "orders" }], 0xd1)),
  type: () => annotation("x-basic-type", "x".repeat(300)),
  priority: () => annotation("x-basic-priority", "x"),
  plain: () => header("text"),
};
const container = rhea.create_container();
const fail = (what) => { console.error(what); process.exit(1); };
let next = 0, accepted = 0;
container.on("sendable", ({ sender }) => {
  for (; next < kinds.length && sender.sendable(); next++) {
    const body = rhea.message.data_section(Buffer.from(kinds[next]));
    sender.send({ durable: true, message_id: kinds[next], body, ...make[kinds[next]]() });
  }
});
container.on("accepted", ({ connection }) => { if (++accepted === kinds.length) connection.close(); });
for (const event of ["rejected", "released", "modified", "sender_error", "session_error", "connection_error"]) {
  container.on(event, (context) => fail(`${event} ${context.sender?.error ?? context.session?.error ?? context.connection?.error}`));
}
container.on("disconnected", () => fail("disconnected"));
container.on("connection_close", () => process.exit(0));
container.connect({
  host: "127.0.0.1", port: Number(port), username: "guest", password: "guest",
  hostname: `vhost:${vhost}`, reconnect: false,
}).open_sender({ target: address });
