// A consumer with retries that knows nothing about them: it rejects what it could not
// process, and finds it in its queue again later.
//
//     npm install amqplib
//     node consumer.js amqp://guest:guest@localhost/ billing

const amqp = require("amqplib");

/** Put your work here; throw what you like when it fails. */
async function process_(body, attempt) {
  if (attempt < 2) throw new Error("the bank is closed");
  console.log("processed", body.toString(), "at attempt", attempt);
}

async function main(url, app) {
  const channel = await (await amqp.connect(url)).createChannel();
  const queue = `${app}-in`;
  await channel.assertQueue(queue, {
    durable: true,
    arguments: {
      "x-queue-type": "quorum",
      // Rejected messages go to the retry service, under our app key ...
      "x-dead-letter-exchange": "delay.retry",
      "x-dead-letter-routing-key": app,
      // ... and the broker keeps them until they are there.
      "x-dead-letter-strategy": "at-least-once",
      "x-overflow": "reject-publish",
    },
  });
  // This is where they come back from. Bind the queue to your own exchanges as well.
  await channel.bindQueue(queue, "delay.dispatch", `delay.${"*.".repeat(7)}${app}`);
  await channel.prefetch(10);
  await channel.consume(queue, async (message) => {
    const headers = message.properties.headers || {};
    try {
      await process_(message.content, headers["delayline-attempt"] || 0);
      channel.ack(message);
    } catch (error) {
      console.log("failed:", error.message);
      channel.nack(message, false, false);
    }
  });
  console.log("waiting for messages");
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
