// Orders with delays, through Rascal: `orders.js receive` prints them, `orders.js 300 1500` sends some.

const { BrokerAsPromised } = require("rascal");

const url = process.env.AMQP_URL;
const vhost = decodeURIComponent(new URL(url).pathname.slice(1));
const config = {
  vhosts: {
    [vhost]: {
      connection: { url },
      exchanges: {
        "orders.delayed": { type: "topic", options: { arguments: { "x-delayed-type": "topic" } } },
        "orders.delayed.in": { assert: false, check: true },
      },
      queues: ["orders"],
      bindings: ["orders.delayed[order.#] -> orders"],
      publications: {
        now: { exchange: "orders.delayed.in", routingKey: "order.placed" },
        later: { exchange: "orders.delayed.in", routingKey: "order.placed", options: { headers: { "x-delay": 1500 } } },
      },
      subscriptions: { orders: { queue: "orders" } },
    },
  },
};

async function publish(broker, publication, body, overrides) {
  const published = await broker.publish(publication, body, { ...overrides, options: { mandatory: true, ...overrides?.options } });
  await new Promise((resolve, reject) => {
    published.on("success", resolve);
    published.on("error", reject);
    published.on("return", () => reject(new Error("it was returned")));
  });
}

async function receive(broker) {
  const subscription = await broker.subscribe("orders");
  subscription.on("message", (message, content, done) => {
    console.log(`${content} ${Date.now()}`);
    done();
  });
  process.once("SIGTERM", () => broker.shutdown().then(() => process.exit(0)));
  console.log("receiving");
}

async function send(broker, delays) {
  if (delays.length > 1) {
    await publish(broker, "now", `now ${Date.now()}`);
    await publish(broker, "later", `later ${Date.now() + 1500}`);
  }
  for (const delay of delays) {
    await publish(broker, "now", `${delay} ${Date.now() + delay}`, { options: { headers: { "x-delay": delay } } });
  }
  await broker.shutdown();
}

async function main(words) {
  const broker = await BrokerAsPromised.create(config);
  broker.on("error", console.error);
  await (words[0] === "receive" ? receive(broker) : send(broker, words.map(Number)));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
