// Google's own client for Node against the emulator at PUBSUB_EMULATOR_HOST.
const assert = require('node:assert/strict');
const http = require('node:http');
const {after, test} = require('node:test');
const {PubSub, SchemaTypes, Encodings} = require('@google-cloud/pubsub');

const pubsub = new PubSub({projectId: 'project-one'});
const opened = [];
let numbers = 0;

after(async () => {
  await Promise.all(opened.map(one => one.close()));
  await pubsub.close();
});

async function pair(options = {}, topicOptions = {}) {
  const [topic] = await pubsub.createTopic({name: `topic-${++numbers}`, ...topicOptions});
  const [sub] = await topic.createSubscription(`sub-${numbers}`, options);
  return [topic, sub];
}

async function publish(topic, ...texts) {
  for (const text of texts) await topic.publishMessage({data: Buffer.from(text)});
}

// What arrives, acked unless `handle` says otherwise.
function listen(name, handle = message => message.ack(), options = {}) {
  const subscription = pubsub.subscription(name, options);
  const received = [];
  subscription.on('message', message => {
    received.push(message);
    handle(message, received);
  });
  subscription.on('error', error => received.push(error));
  opened.push(subscription);
  return {subscription, received, texts: () => received.map(m => String(m.data))};
}

async function until(condition, seconds = 30) {
  const end = Date.now() + seconds * 1000;
  while (!condition()) {
    assert.ok(Date.now() < end, `took too long: ${condition}`);
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}

const name = resource => resource.name.split('/').pop();

test('what is published arrives once, as it was', async () => {
  const [topic, sub] = await pair();
  const id = await topic.publishMessage({data: Buffer.from('hi'), attributes: {k: 'ü'}});
  const got = listen(name(sub));
  await until(() => got.received.length === 1);
  const [message] = got.received;
  assert.deepEqual([message.id, String(message.data)], [id, 'hi']);
  assert.deepEqual({...message.attributes}, {k: 'ü'});
});

test('a window of two is never exceeded', async () => {
  const [topic, sub] = await pair();
  await Promise.all([...'abcdef'].map(text => publish(topic, text)));
  const held = new Set();
  let most = 0;
  const got = listen(name(sub), message => {
    held.add(message);
    most = Math.max(most, held.size);
    setTimeout(() => (held.delete(message), message.ack()), 30);
  }, {flowControl: {maxMessages: 2, allowExcessMessages: false}});
  await until(() => got.received.length === 6);
  assert.ok(most <= 2, `${most} at a time`);
});

test('a key stays in order when its messages are nacked', async () => {
  const [topic, sub] = await pair({enableMessageOrdering: true});
  const ordered = pubsub.topic(name(topic), {messageOrdering: true});
  for (const text of 'abc') await ordered.publishMessage({data: Buffer.from(text), orderingKey: 'k'});
  const acked = [];
  const seen = new Map();
  listen(name(sub), message => {
    const text = String(message.data);
    seen.set(text, (seen.get(text) || 0) + 1);
    if (seen.get(text) === 1) return message.nack();
    acked.push(text);
    message.ack();
  });
  await until(() => acked.length === 3);
  assert.deepEqual(acked, ['a', 'b', 'c']);
});

test('exactly once, an ack is confirmed, and one that comes too late is refused', async () => {
  const [topic, sub] = await pair({enableExactlyOnceDelivery: true});
  await publish(topic, 'x');
  const answers = [];
  listen(name(sub), async (message, received) => {
    if (received.length === 1) await sub.seek(new Date(0)); // ends what is on loan
    // The client tells both of a request that failed for one of them that it failed.
    else await until(() => answers.length === 1);
    answers.push(await message.ackWithResponse().catch(error => error.errorCode));
  });
  await until(() => answers.length === 2);
  assert.deepEqual(answers.sort(), ['INVALID', 'SUCCESS']);
});

test('a filter lets through what it says', async () => {
  const [topic, sub] = await pair({filter: 'attributes.kind = "good"'});
  for (const kind of ['bad', 'good', 'bad'])
    await topic.publishMessage({data: Buffer.from(kind), attributes: {kind}});
  const got = listen(name(sub));
  await until(() => got.received.length === 1);
  assert.deepEqual(got.texts(), ['good']);
});

test('what fails five times is a dead letter', async () => {
  const [dead, rest] = await pair();
  const [topic, sub] = await pair({
    deadLetterPolicy: {deadLetterTopic: dead.name, maxDeliveryAttempts: 5},
  });
  await publish(topic, 'x');
  const tries = listen(name(sub), message => message.nack());
  const got = listen(name(rest));
  await until(() => got.received.length === 1);
  assert.deepEqual(tries.received.map(m => m.deliveryAttempt), [1, 2, 3, 4, 5]);
  const {attributes} = got.received[0];
  assert.equal(attributes.CloudPubSubDeadLetterSourceDeliveryCount, '5');
  assert.equal(attributes.CloudPubSubDeadLetterSourceSubscription, name(sub));
});

test('a retry policy delays the first redelivery too', async () => {
  const [topic, sub] = await pair({
    retryPolicy: {minimumBackoff: {seconds: 1}, maximumBackoff: {seconds: 2}},
  });
  await publish(topic, 'x');
  const at = [];
  listen(name(sub), (message, received) => {
    at.push(Date.now());
    if (received.length === 1) message.nack();
    else message.ack();
  });
  await until(() => at.length === 2);
  assert.ok(at[1] - at[0] >= 900, `${at[1] - at[0]} ms`);
});

test('seeking to a time and to a snapshot brings messages back', async () => {
  const [topic, sub] = await pair({retainAckedMessages: true});
  const before = new Date(Date.now() - 60_000);
  const [snapshot] = await sub.createSnapshot(`snapshot-${numbers}`);
  await publish(topic, 'x');
  const got = listen(name(sub));
  await until(() => got.received.length === 1);
  await sub.seek(before);
  await until(() => got.received.length === 2);
  await sub.seek(name(snapshot));
  await until(() => got.received.length === 3);
  assert.deepEqual(got.texts(), ['x', 'x', 'x']);
  await snapshot.delete();
});

test('a schema is kept, and messages are held to it', async () => {
  const definition = JSON.stringify({
    type: 'record', name: 'State', fields: [{name: 'name', type: 'string'}],
  });
  const schema = await pubsub.createSchema('state', SchemaTypes.Avro, definition);
  const full = await schema.getName();
  const [topic, sub] = await pair({}, {schemaSettings: {schema: full, encoding: Encodings.Json}});
  await assert.rejects(topic.publishMessage({data: Buffer.from('{"name": 7}')}), /schema/i);
  await topic.publishMessage({data: Buffer.from('{"name": "Ohio"}')});
  const got = listen(name(sub));
  await until(() => got.received.length === 1);
  assert.equal(got.received[0].attributes.googclient_schemaencoding, 'JSON');
  await schema.delete();
});

test('messages are pushed, and again when refused', async () => {
  const bodies = [];
  const server = http.createServer((request, response) => {
    let body = '';
    request.on('data', data => (body += data));
    request.on('end', () => {
      bodies.push(JSON.parse(body));
      response.statusCode = bodies.length === 1 ? 500 : 204;
      response.end();
    });
  });
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  const pushEndpoint = `http://127.0.0.1:${server.address().port}/push`;
  const [topic, sub] = await pair({pushConfig: {pushEndpoint}});
  await publish(topic, 'x');
  await until(() => bodies.length === 2);
  assert.equal(Buffer.from(bodies[1].message.data, 'base64').toString(), 'x');
  assert.equal(bodies[1].subscription, sub.name);
  await sub.delete();
  server.close();
});

test('lists come in pages', async () => {
  const wanted = [];
  for (let n = 0; n < 5; n++) wanted.push((await pubsub.createTopic(`paged-${n}`))[0].name);
  const found = [];
  let options = {pageSize: 2, autoPaginate: false};
  while (options) {
    const [page, next] = await pubsub.getTopics(options);
    assert.ok(page.length <= 2);
    found.push(...page.map(topic => topic.name));
    options = next;
  }
  assert.deepEqual(found.filter(one => one.includes('/paged-')), wanted);
});

test('mistakes have the codes of Google', async () => {
  const [topic] = await pair();
  const code = expected => error => error.code === expected;
  await assert.rejects(pubsub.createTopic(name(topic)), code(6));
  await assert.rejects(pubsub.createTopic('goog-is-reserved'), code(3));
  await assert.rejects(pubsub.topic('never-was').get(), code(5));
  await assert.rejects(topic.createSubscription('broken', {filter: 'attributes.k ='}), code(3));
  const got = listen('never-was', undefined);
  await until(() => got.received.length === 1);
  assert.equal(got.received[0].code, 5);
});
