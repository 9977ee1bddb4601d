# Answers conformance cases: one JSON object a line in, one a line out.
#
#     delayline-bench conformance ruby conformance/runners/runner.rb
require "json"

LONGEST = 2**28 - 1

def check_app(app)
  raise RangeError, "an app key is 1 to 150 bytes long" unless app.bytesize.between?(1, 150)
  app.split(".", -1).each do |word|
    raise RangeError, "no word of an app key is empty or `~`" if ["", "~"].include?(word)
    raise RangeError, "an app key has no `*`, `#`, white space or control characters" if word =~ /[*#[:space:][:cntrl:]]/
  end
  app
end

def routing_key(seconds, app)
  raise RangeError, "a delay is 0 to 268,435,455 seconds" unless seconds.is_a?(Numeric) && seconds.between?(0, LONGEST)
  "delay." + seconds.ceil.to_s(2).rjust(28, "0").scan(/.{4}/).join(".") + "." + check_app(app)
end

def decode(key)
  found = /\Adelay((?:\.[01]{4}){7})\.(.+)\z/m.match(key)
  raise RangeError, "a routing key is `delay`, seven words of four bits, and an app key" unless found
  { seconds: found[1].delete(".").to_i(2), app: check_app(found[2]) }
end

def recall(seconds, app, id)
  raise RangeError, "an id is 1 to 64 of A-Z, a-z, 0-9, `_` and `-`" unless id.match?(/\A[A-Za-z0-9_-]{1,64}\z/)
  key = "#{routing_key(seconds, app)}.~.#{id}"
  raise RangeError, "the routing key is longer than 255 bytes" if key.bytesize > 255
  { key: key, exchange: "delay.recall.#{app}", queue: "delay.recalled.#{app}" }
end

def app_of(key)
  delayed = /\Adelay(?:\.[01]{4}){7}\.(.+?)(?:\.~\.[A-Za-z0-9_-]{1,64})?\z/m.match(key)
  check_app(delayed ? delayed[1] : key)
end

def answer(it)
  case it["question"]
  when "key" then { key: routing_key(it["seconds"], it["app"]) }
  when "decode" then decode(it["key"])
  when "bind" then { pattern: "delay." + "*." * 7 + check_app(it["app"]) }
  when "recall" then recall(it["seconds"], it["app"], it["id"])
  when "retry" then { app: app_of(it["key"]) }
  end
end

$stdout.sync = true
$stdin.each_line do |line|
  puts JSON.generate(answer(JSON.parse(line)))
rescue RangeError => e
  puts JSON.generate({ error: e.message })
end
