// Prisma's query engine for a gateway that uses prisma-client-py: the HTTP interface of the native program, and behind it
// Prisma's own engine as WebAssembly with Prisma's own Postgres driver. The native program is in no package registry.
//
// prisma-client-py asks in GraphQL. This engine understands only Prisma's JSON protocol, so each query is translated.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const { parse } = require("graphql");
const { Pool } = require("pg");
const { prototype: pgResult } = require("pg/lib/result");
const { PrismaPg } = require("@prisma/adapter-pg");
const { bindAdapter } = require("@prisma/driver-adapter-utils");
const glue = require("@prisma/client/runtime/query_engine_bg.postgresql.js");
const program = readFileSync(require.resolve("@prisma/client/runtime/query_engine_bg.postgresql.wasm"));

const CONNECTIONS_MAX = 10;
const WAIT_MS = 10_000; // for a connection, as the native engine waits
const schema = readFileSync(process.env.PRISMA_DML_PATH, "utf8");
const jsonFields = Object.fromEntries(
  [...schema.matchAll(/^model (\w+) \{([^]*?)^\}/gm)].map(([, model, body]) => [
    model,
    new Set([...body.matchAll(/^\s*(\w+)\s+Json/gm)].map(([, name]) => name)),
  ]),
);
const TEXT_OID = 25;
const TEXTS_OID = 1009;
const TEXT_LIKE_OIDS = { 18: TEXT_OID, 19: TEXT_OID, 2278: TEXT_OID, 1003: TEXTS_OID }; // char, name, void, name[]
const ACTIONS = [
  ...["findUniqueOrThrow", "findUnique", "findFirstOrThrow", "findFirst", "findMany", "createManyAndReturn", "createMany"],
  ...["createOne", "updateMany", "updateOne", "upsertOne", "deleteMany", "deleteOne", "aggregate", "groupBy"],
  ...["queryRaw", "executeRaw"],
];

function readValue(node) {
  switch (node.kind) {
    case "ObjectValue":
      return Object.fromEntries(node.fields.map((field) => [field.name.value, readValue(field.value)]));
    case "ListValue":
      return node.values.map(readValue);
    case "NullValue":
      return null;
    case "IntValue":
    case "FloatValue":
      return Number(node.value);
    default:
      return node.value; // a text, a boolean or the name of an enum
  }
}

const readArguments = (field) => Object.fromEntries(field.arguments.map((one) => [one.name.value, readValue(one.value)]));

function readSelection(set) {
  const fields = set?.selections ?? [];
  return Object.fromEntries(fields.map((field) => [field.name.value, field.selectionSet ? readField(field) : true]));
}

const readField = (field) => ({ arguments: readArguments(field), selection: readSelection(field.selectionSet) });

// Texts of JSON fields are JSON already.
function tagJson(value, names) {
  if (Array.isArray(value)) return value.map((one) => tagJson(one, names));
  if (value === null || typeof value !== "object") return value;
  const tag = (name, one) => (names.has(name) && typeof one === "string" ? { $type: "Json", value: one } : tagJson(one, names));
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, tag(name, one)]));
}

function translate({ query }) {
  const field = parse(query).definitions[0].selectionSet.selections[0];
  const action = ACTIONS.find((name) => field.name.value.startsWith(name));
  const modelName = field.name.value.slice(action.length);
  if (!modelName) return { action, query: readField(field) };
  const asked = readField(field);
  return { modelName, action, query: { ...asked, arguments: tagJson(asked.arguments, jsonFields[modelName]) } };
}

function untag(found) {
  if (Array.isArray(found)) return found.map(untag);
  if (found === null || typeof found !== "object") return found;
  if ("$type" in found) return found.$type === "BigInt" ? Number(found.value) : found.value;
  return Object.fromEntries(Object.entries(found).map(([name, value]) => [name, untag(value)]));
}

// The rows of a raw query as the native engine of prisma-client-py's release gives them.
function readRows({ columns, types, rows }) {
  const read = (value, type) => (type === "json" && typeof value === "string" ? JSON.parse(value) : value);
  const cell = (value, type) => {
    if (value === null) return { prisma__type: "null", prisma__value: null };
    if (!type.endsWith("-array")) return { prisma__type: type, prisma__value: read(value, type) };
    return { prisma__type: "array", prisma__value: value.map((one) => cell(one, type.slice(0, -"-array".length))) };
  };
  return rows.map((row) => Object.fromEntries(row.map((value, at) => [columns[at], cell(value, types[at])])));
}

function rename(reply) {
  if (!reply.data) return reply;
  const [[name, found]] = Object.entries(reply.data);
  return { data: { result: name === "queryRaw" ? readRows(found) : untag(found) } };
}

async function answer(engine, body, transaction) {
  const ask = async (query) => JSON.parse(await engine.query(JSON.stringify(query), "{}", transaction));
  if (!body.batch) return rename(await ask(translate(body)));
  const reply = await ask({ batch: body.batch.map(translate), transaction: body.transaction ? {} : undefined });
  return reply.batchResult ? { batchResult: reply.batchResult.map(rename) } : reply;
}

async function route(engine, path, text, transaction) {
  const [, first, id, verb] = path.split("/");
  if (first === "status") return { status: "ok" };
  if (first !== "transaction") return answer(engine, JSON.parse(text), transaction);
  if (id === "start") return JSON.parse(await engine.startTransaction(text, "{}"));
  return JSON.parse(await (verb === "commit" ? engine.commitTransaction(id, "{}") : engine.rollbackTransaction(id, "{}")));
}

const { addFields } = pgResult;
pgResult.addFields = function (fields) {
  for (const field of fields) field.dataTypeID = TEXT_LIKE_OIDS[field.dataTypeID] ?? field.dataTypeID; // else unknown to the driver
  return addFields.call(this, fields);
};

async function startEngine() {
  const { instance } = await WebAssembly.instantiate(program, { "./query_engine_bg.js": glue });
  glue.__wbg_set_wasm(instance.exports);
  const overrides = JSON.parse(process.env.OVERWRITE_DATASOURCES ?? "[]");
  const connectionString = (overrides[0]?.url ?? process.env.DATABASE_URL).split("?")[0];
  const pool = new Pool({ connectionString, max: CONNECTIONS_MAX, connectionTimeoutMillis: WAIT_MS });
  pool.on("error", () => {}); // a lost idle connection: the pool makes a new one
  const options = {
    datamodel: schema,
    ...{ logLevel: "error", logQueries: false, env: {}, configDir: ".", engineProtocol: "json", enableTracing: false },
  };
  const engine = new glue.QueryEngine(options, (line) => console.error(line), bindAdapter(new PrismaPg(pool)));
  await engine.connect("{}");
  return engine;
}

const engine = await startEngine();
const server = createServer(async (request, response) => {
  let text = "";
  for await (const part of request) text += part;
  let reply;
  try {
    reply = await route(engine, request.url, text, request.headers["x-transaction-id"]);
  } catch (error) {
    reply = { errors: [{ error: String(error), user_facing_error: { message: String(error), is_panic: false, meta: {} } }] };
  }
  response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(reply));
});
server.keepAliveTimeout = 600_000;
server.listen(Number(process.argv[process.argv.indexOf("-p") + 1]), "localhost");
