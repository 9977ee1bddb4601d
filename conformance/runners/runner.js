// Answers conformance cases: one JSON object a line in, one a line out.
//
//     delayline-bench conformance node conformance/runners/runner.js
"use strict";

const LONGEST = 2 ** 28 - 1;

function checkApp(app) {
  const bytes = Buffer.byteLength(app);
  if (bytes < 1 || bytes > 150) throw new RangeError("an app key is 1 to 150 bytes long");
  for (const word of app.split(".")) {
    if (word === "" || word === "~") throw new RangeError("no word of an app key is empty or `~`");
    if (/[*#\s\p{Cc}]/u.test(word)) {
      throw new RangeError("an app key has no `*`, `#`, white space or control characters");
    }
  }
  return app;
}

function routingKey(seconds, app) {
  if (typeof seconds !== "number" || !(seconds >= 0 && seconds <= LONGEST)) {
    throw new RangeError("a delay is 0 to 268,435,455 seconds");
  }
  const bits = Math.ceil(seconds).toString(2).padStart(28, "0");
  return `delay.${bits.match(/.{4}/g).join(".")}.${checkApp(app)}`;
}

function decode(key) {
  const found = /^delay((?:\.[01]{4}){7})\.(.+)$/su.exec(key);
  if (!found) throw new RangeError("a routing key is `delay`, seven words of four bits, and an app key");
  return { seconds: parseInt(found[1].replaceAll(".", ""), 2), app: checkApp(found[2]) };
}

function recall(seconds, app, id) {
  if (!/^[A-Za-z0-9_-]{1,64}$/.test(id)) throw new RangeError("an id is 1 to 64 of A-Z, a-z, 0-9, `_` and `-`");
  const key = `${routingKey(seconds, app)}.~.${id}`;
  if (Buffer.byteLength(key) > 255) throw new RangeError("the routing key is longer than 255 bytes");
  return { key, exchange: `delay.recall.${app}`, queue: `delay.recalled.${app}` };
}

function appOf(key) {
  const delayed = /^delay(?:\.[01]{4}){7}\.(.+?)(?:\.~\.[A-Za-z0-9_-]{1,64})?$/su.exec(key);
  return checkApp(delayed ? delayed[1] : key);
}

function answer(question) {
  switch (question.question) {
    case "key": return { key: routingKey(question.seconds, question.app) };
    case "decode": return decode(question.key);
    case "bind": return { pattern: `delay.${"*.".repeat(7)}${checkApp(question.app)}` };
    case "recall": return recall(question.seconds, question.app, question.id);
    case "retry": return { app: appOf(question.key) };
  }
}

require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
  let said;
  try {
    said = answer(JSON.parse(line));
  } catch (error) {
    said = { error: error.message };
  }
  console.log(JSON.stringify(said));
});
