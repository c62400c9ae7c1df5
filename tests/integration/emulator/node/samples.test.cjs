// What the system tests and samples of Google's client for Node do and ask, against the emulator
// at PUBSUB_EMULATOR_HOST. Written anew; what needs other services is made and shown only.
const assert = require('node:assert/strict');
const crypto = require('node:crypto');
const {after, before, describe, it} = require('node:test');
const {PubSub, SchemaTypes, Encodings, Subscription, v1} = require('@google-cloud/pubsub');

const projectId = 'project-one';
const pubsub = new PubSub({projectId});
const subscriberClient = new v1.SubscriberClient({
  projectId,
  servicePath: process.env.PUBSUB_EMULATOR_HOST.split(':')[0],
  port: Number(process.env.PUBSUB_EMULATOR_HOST.split(':')[1]),
  sslCreds: require('@grpc/grpc-js').credentials.createInsecure(),
});
const opened = [];
let numbers = 0;
const unique = kind => `samples-${kind}-${++numbers}`;

after(async () => {
  await Promise.all(opened.map(one => one.close()));
  await subscriberClient.close();
  await pubsub.close();
});

async function makeTopic(options = {}) {
  const [topic] = await pubsub.createTopic({name: unique('topic'), ...options});
  return topic;
}

async function makePair(options = {}) {
  const topic = await makeTopic();
  const [sub] = await topic.createSubscription(unique('sub'), options);
  return [topic, sub];
}

const hello = Buffer.from('Hello, world!');

// The first `count` messages of a subscription; what `handle` does with each is up to it.
function receive(sub, count, handle = message => message.ack()) {
  opened.push(sub);
  return new Promise((resolve, reject) => {
    const received = [];
    sub.on('error', reject);
    sub.on('message', message => {
      received.push(message);
      handle(message);
      if (received.length === count) resolve(received);
    });
  });
}

function streamed(stream) {
  return new Promise((resolve, reject) => {
    const found = [];
    stream.on('error', reject).on('data', one => found.push(one)).on('end', () => resolve(found));
  });
}

describe('topics', () => {
  let topics;
  before(async () => {
    topics = await Promise.all([makeTopic(), makeTopic(), makeTopic()]);
  });
  const known = found => found.filter(one => topics.some(topic => topic.name === one.name));

  it('are listed, in a stream and by pages', async () => {
    assert.equal(known((await pubsub.getTopics())[0]).length, 3);
    assert.equal(known(await streamed(pubsub.getTopicsStream())).length, 3);
    const [page] = await pubsub.getTopics({pageSize: 2, gaxOpts: {autoPaginate: false}});
    assert.equal(page.length, 2);
  });

  it('are created, also when asked for, and deleted', async () => {
    const topic = await makeTopic();
    await topic.delete();
    const [asked] = await pubsub.topic(unique('topic')).get({autoCreate: true});
    assert.deepEqual(await asked.exists(), [true]);
    assert.deepEqual(await pubsub.topic('should-not-exist').exists(), [false]);
    const [metadata] = await asked.getMetadata();
    assert.equal(metadata.name, asked.name);
  });

  it('take messages, large ones and ones with attributes', async () => {
    const [topic, sub] = await makePair();
    assert.equal(typeof (await topic.publishMessage({data: hello})), 'string');
    const attributes = {origin: 'nodejs-sample', username: 'gcp'};
    await topic.publishMessage({data: hello, attributes});
    const large = crypto.randomBytes(9000000);
    const id = await topic.publishMessage({data: large});
    const received = await receive(sub, 3);
    assert.ok(received.some(message => message.id === id && message.data.equals(large)));
    assert.ok(received.some(message => message.attributes.origin === 'nodejs-sample'));
  });

  it('take ordered messages, batches, and go on when resumed', async () => {
    const [topic, sub] = await makePair({enableMessageOrdering: true});
    const ordered = pubsub.topic(topic.name, {messageOrdering: true});
    await ordered.publishMessage({data: hello, orderingKey: 'my-key'});
    ordered.resumePublishing('my-key');
    await ordered.publishMessage({data: Buffer.from('again'), orderingKey: 'my-key'});
    const batched = pubsub.topic(topic.name, {batching: {maxMessages: 10, maxMilliseconds: 50}});
    await Promise.all([...Array(10)].map(() => batched.publishMessage({data: hello})));
    const received = await receive(sub, 12);
    const keyed = received.filter(message => message.orderingKey === 'my-key');
    assert.deepEqual(keyed.map(message => String(message.data)), ['Hello, world!', 'again']);
  });

  it('have policies', async () => {
    const [before] = await topics[0].iam.getPolicy();
    assert.deepEqual([before.bindings, before.version], [[], 0]);
    const bindings = [
      {role: 'roles/pubsub.editor', members: ['group:cloud-logs@google.com']},
      {role: 'roles/pubsub.viewer', members: ['allUsers']},
    ];
    const [updated] = await topics[0].iam.setPolicy({bindings});
    const expected = bindings.map(one => ({...one, condition: null}));
    assert.deepEqual(JSON.parse(JSON.stringify(updated.bindings)), expected);
    const [after] = await topics[0].iam.getPolicy();
    assert.deepEqual(JSON.parse(JSON.stringify(after.bindings)), expected);
    const asked = ['pubsub.topics.get', 'pubsub.topics.update'];
    const [granted] = await topics[0].iam.testPermissions(asked);
    assert.deepEqual({...granted}, {'pubsub.topics.get': true, 'pubsub.topics.update': true});
  });

  it('would ingest, and say from where', async () => {
    const awsKinesis = {streamArn: 'arn:s', consumerArn: 'arn:c', awsRoleArn: 'arn:r',
      gcpServiceAccount: 'a@b.iam.gserviceaccount.com'};
    const topic = await makeTopic({ingestionDataSourceSettings: {awsKinesis}});
    const [metadata] = await topic.getMetadata();
    assert.equal(metadata.ingestionDataSourceSettings.awsKinesis.streamArn, 'arn:s');
    const plain = await makeTopic();
    await plain.setMetadata({ingestionDataSourceSettings: {awsKinesis}});
    const [changed] = await plain.getMetadata();
    assert.equal(changed.ingestionDataSourceSettings.awsKinesis.awsRoleArn, 'arn:r');
  });
});

describe('subscriptions', () => {
  it('have names that are their own, whatever the topic', async () => {
    const [, sub] = await makePair();
    const other = pubsub.topic(unique('never-created')).subscription(sub.name.split('/').pop());
    await assert.rejects(other.create(), {code: 6});
  });

  it('are listed by topic and by project, in streams too', async () => {
    const topic = await makeTopic();
    for (let n = 0; n < 2; n++) await topic.createSubscription(unique('sub'));
    const [subs] = await topic.getSubscriptions();
    assert.equal(subs.length, 2);
    assert.ok(subs[0] instanceof Subscription);
    assert.equal((await streamed(topic.getSubscriptionsStream())).length, 2);
    assert.ok((await pubsub.getSubscriptions())[0].length >= 2);
    assert.ok((await streamed(pubsub.getSubscriptionsStream()))[0] instanceof Subscription);
  });

  it('are created when asked for, and deleted', async () => {
    const topic = await makeTopic();
    const [sub] = await topic.subscription(unique('sub')).get({autoCreate: true});
    assert.deepEqual(await sub.exists(), [true]);
    await sub.delete();
    assert.deepEqual(await sub.exists(), [false]);
    const [left] = await pubsub.getSubscriptions();
    assert.ok(left.every(one => one.name !== sub.name));
  });

  it('say what they are, push configuration included', async () => {
    const [topic, sub] = await makePair();
    const [metadata] = await sub.getMetadata();
    assert.equal(metadata.name, sub.name);
    assert.equal(metadata.topic, topic.name);
    assert.equal(metadata.pushConfig.pushEndpoint, '');
    assert.equal(metadata.ackDeadlineSeconds, 10);
  });

  it('keep messages as long as they are told', async () => {
    const seconds = 3 * 24 * 60 * 60;
    const [, sub] = await makePair({messageRetentionDuration: seconds});
    const [, changed] = await makePair();
    await changed.setMetadata({messageRetentionDuration: seconds});
    for (const one of [sub, changed]) {
      const [metadata] = await one.getMetadata();
      assert.equal(Number(metadata.messageRetentionDuration.seconds), seconds);
      assert.equal(Number(metadata.messageRetentionDuration.nanos), 0);
    }
  });

  it('that are not there are an error of the listener', async () => {
    const sub = pubsub.subscription('nonexistent-subscription');
    opened.push(sub);
    const error = await new Promise(resolve => sub.on('error', resolve).on('message', () => {}));
    assert.equal(error.code, 5);
    assert.match(error.message, /Resource not found/);
  });

  it('hand over, take acks and nacks, and respect limits', async () => {
    const [topic, sub] = await makePair({ackDeadlineSeconds: 30});
    for (let n = 0; n < 10; n++) await topic.publishMessage({data: hello});
    const limited = pubsub.subscription(sub.name, {
      flowControl: {maxMessages: 3, allowExcessMessages: false},
    });
    assert.equal((await receive(limited, 3, () => {})).length, 3);
    await limited.close();
    let nacked = false;
    const received = await receive(sub, 11, message => {
      if (nacked) return message.ack();
      nacked = true;
      message.nack();
    });
    assert.ok(received.every(message => message.data.equals(hello)));
  });

  it('are made with filters, retries, endpoints and tables', async () => {
    const topic = await makeTopic();
    const pushEndpoint = 'https://project.appspot.invalid/push';
    for (const [options, look] of [
      [{filter: 'attributes.author="unknown"'}, m => m.filter === 'attributes.author="unknown"'],
      [{retryPolicy: {minimumBackoff: {seconds: 10}, maximumBackoff: {seconds: 60}}},
        m => Number(m.retryPolicy.maximumBackoff.seconds) === 60],
      [{pushEndpoint}, m => m.pushConfig.pushEndpoint === pushEndpoint],
      [{pushConfig: {pushEndpoint, noWrapper: {writeMetadata: true}}},
        m => m.pushConfig.noWrapper.writeMetadata === true],
      [{bigqueryConfig: {table: 'a.b.c', writeMetadata: true}},
        m => m.bigqueryConfig.table === 'a.b.c'],
      [{cloudStorageConfig: {bucket: 'bucket', maxBytes: 2000, avroConfig: {writeMetadata: true}}},
        m => m.cloudStorageConfig.bucket === 'bucket'],
      [{enableMessageOrdering: true}, m => m.enableMessageOrdering === true],
      [{enableExactlyOnceDelivery: true}, m => m.enableExactlyOnceDelivery === true],
    ]) {
      const [sub] = await topic.createSubscription(unique('sub'), options);
      const [metadata] = await sub.getMetadata();
      assert.ok(look(metadata), JSON.stringify([options, metadata]));
    }
  });

  it('change their endpoint', async () => {
    const [, sub] = await makePair();
    await sub.modifyPushConfig({pushEndpoint: 'https://project.appspot.invalid/push2'});
    const [metadata] = await sub.getMetadata();
    assert.equal(metadata.pushConfig.pushEndpoint, 'https://project.appspot.invalid/push2');
  });

  it('are pulled one by one, with a lease and with attempts', async () => {
    const dead = await makeTopic();
    const [topic, sub] = await makePair({
      deadLetterPolicy: {deadLetterTopic: dead.name, maxDeliveryAttempts: 10},
    });
    await topic.publishMessage({data: hello});
    const subscription = sub.name;
    const [response] = await subscriberClient.pull({subscription, maxMessages: 10});
    const [received] = response.receivedMessages;
    assert.equal(String(received.message.data), 'Hello, world!');
    assert.equal(received.deliveryAttempt, 1);
    const ackIds = [received.ackId];
    await subscriberClient.modifyAckDeadline({subscription, ackIds, ackDeadlineSeconds: 10});
    await subscriberClient.acknowledge({subscription, ackIds});
  });

  it('have dead-letter policies that change and go', async () => {
    const dead = await makeTopic();
    const [, sub] = await makePair();
    for (const [policy, attempts] of [[10, 10], [15, 15], [null, undefined]]) {
      const deadLetterPolicy = policy && {deadLetterTopic: dead.name, maxDeliveryAttempts: policy};
      await sub.setMetadata({deadLetterPolicy});
      const [metadata] = await sub.getMetadata();
      assert.equal(metadata.deadLetterPolicy?.maxDeliveryAttempts, attempts);
      if (!policy) assert.equal(metadata.deadLetterPolicy, null);
    }
  });

  it('have policies', async () => {
    const [, sub] = await makePair();
    await sub.iam.setPolicy({bindings: [{role: 'roles/pubsub.viewer', members: ['allUsers']}]});
    const [policy] = await sub.iam.getPolicy();
    assert.equal(policy.bindings[0].role, 'roles/pubsub.viewer');
    const asked = ['pubsub.subscriptions.consume', 'pubsub.subscriptions.update'];
    const [granted] = await sub.iam.testPermissions(asked);
    assert.deepEqual(Object.values(granted), [true, true]);
  });

  it('are detached', async () => {
    const [, sub] = await makePair();
    assert.deepEqual(await sub.detached(), [false]);
    await pubsub.detachSubscription(sub.name);
    assert.deepEqual(await sub.detached(), [true]);
  });

  it('confirm acks where delivery is exactly once', async () => {
    const [topic, sub] = await makePair({enableExactlyOnceDelivery: true});
    const ids = [];
    for (let n = 0; n < 2; n++) ids.push(await topic.publishMessage({data: hello}));
    const acked = [];
    await receive(sub, 2, message => acked.push(message.ackWithResponse().then(() => message.id)));
    assert.deepEqual((await Promise.all(acked)).sort(), ids.sort());
  });
});

describe('snapshots', () => {
  it('are listed', async () => {
    const [, sub] = await makePair();
    const name = unique('snapshot');
    await sub.snapshot(name).create();
    for (const found of [(await pubsub.getSnapshots())[0],
      await streamed(pubsub.getSnapshotsStream())]) {
      assert.ok(found.some(one => one.name.endsWith(`/${name}`)));
    }
    await sub.snapshot(name).delete();
  });

  for (const target of ['snapshot', 'date']) {
    it(`bring a message back that was acked: ${target}`, async () => {
      const [topic, sub] = await makePair();
      const [snapshot] = await sub.createSnapshot(unique('snapshot'));
      await topic.publishMessage({data: hello});
      let seen = 0;
      await receive(sub, 2, message => {
        message.ack();
        if (++seen === 1) target === 'date' ? sub.seek(message.publishTime) : snapshot.seek();
      });
    });
  }
});

describe('schemas', () => {
  const avro = JSON.stringify({type: 'record', name: 'Province', namespace: 'utilities', fields: [
    {name: 'name', type: 'string', doc: 'The common name.'},
    {name: 'post_abbr', type: 'string', doc: 'The postal code.'}]});
  const proto = 'syntax = "proto3"; package utilities;' +
    'message Province { string name = 1; string post_abbr = 2; }';
  const make = type =>
    pubsub.createSchema(unique('schema'), type, type === SchemaTypes.Avro ? avro : proto);

  it('are created, shown, listed and deleted', async () => {
    for (const type of [SchemaTypes.Avro, SchemaTypes.ProtocolBuffer]) {
      const schema = await make(type);
      const info = await schema.get();
      assert.equal(info.type, type);
      const found = [];
      for await (const one of pubsub.listSchemas()) found.push(one.name);
      assert.ok(found.includes(await schema.getName()));
      await schema.delete();
      await assert.rejects(schema.get(), {code: 5});
    }
  });

  it('have revisions, which are listed, rolled back and deleted', async () => {
    const client = await pubsub.getSchemaClient();
    const schema = await make(SchemaTypes.ProtocolBuffer);
    const name = await schema.getName();
    const commit = () =>
      client.commitSchema({name, schema: {name, type: 'PROTOCOL_BUFFER', definition: proto}});
    const [first] = await commit();
    const [second] = await commit();
    assert.notEqual(first.revisionId, second.revisionId);
    const [listed] = await client.listSchemaRevisions({name});
    const ids = listed.map(one => one.revisionId);
    assert.ok(ids.includes(first.revisionId) && ids.includes(second.revisionId));
    await client.rollbackSchema({name, revisionId: first.revisionId});
    await client.deleteSchemaRevision({name, revisionId: second.revisionId});
    const [one] = await client.getSchema({name: `${name}@${first.revisionId}`});
    assert.equal(one.revisionId, first.revisionId);
  });

  it('and their revisions belong to topics', async () => {
    const client = await pubsub.getSchemaClient();
    const schema = await make(SchemaTypes.ProtocolBuffer);
    const name = await schema.getName();
    const [{revisionId}] = await client.commitSchema({
      name, schema: {name, type: 'PROTOCOL_BUFFER', definition: proto}});
    const topic = await makeTopic({schemaSettings: {schema: name, encoding: 'BINARY',
      firstRevisionId: revisionId, lastRevisionId: revisionId}});
    const [metadata] = await topic.getMetadata();
    assert.ok(metadata.schemaSettings.schema.includes(schema.id));
    assert.equal(metadata.schemaSettings.firstRevisionId, revisionId);
    assert.equal(metadata.schemaSettings.lastRevisionId, revisionId);
  });

  for (const [type, encoding] of [
    [SchemaTypes.Avro, Encodings.Json], [SchemaTypes.ProtocolBuffer, Encodings.Json]]) {
    it(`are what messages are checked by: ${type}`, async () => {
      const schema = await make(type);
      const topic = await makeTopic({
        schemaSettings: {schema: await schema.getName(), encoding}});
      const [sub] = await topic.createSubscription(unique('sub'));
      const data = Buffer.from(JSON.stringify({name: 'Quebec', post_abbr: 'QC'}));
      await topic.publishMessage({data});
      const [message] = await receive(sub, 1);
      assert.equal(JSON.parse(message.data.toString()).name, 'Quebec');
      const {Schema} = require('@google-cloud/pubsub');
      assert.equal(Schema.metadataFromMessage(message.attributes).encoding, Encodings.Json);
      await assert.rejects(topic.publishMessage({data: Buffer.from('{"x": 1}')}), {code: 3});
    });
  }
});
