// Keeps the live numbers of the operator's pages up to date, every two seconds while the page is visible.
import { localTime } from "./page.js";

const EVERY_MS = 2000;
const RATE_SPAN = 15; // readings: rates are over the last half minute
const BADGES = { usable: "good", failing: "bad", half_open: "warn", circuit_open: "bad", resting: "warn" };
const readings = [];

function show(name, text) {
  const place = document.querySelector(`[data-live="${name}"]`);
  if (place && place.textContent !== String(text)) place.textContent = text;
}

function grouped(number) {
  return number.toLocaleString("en");
}

function listed(counts, none) {
  return counts.map((one) => `${one.name}: ${one.count}`).join(", ") || none;
}

function total(counts, from = "") {
  return counts.filter((one) => one.name >= from).reduce((sum, one) => sum + one.count, 0);
}

function showRates(load) {
  const reading = { at: performance.now(), all: total(load.requests), failed: total(load.requests, "500") };
  if (readings.length && reading.all < readings.at(-1).all) readings.length = 0; // the service was restarted
  readings.push(reading);
  if (readings.length > RATE_SPAN) readings.shift();
  const before = readings[0];
  if (before === reading) return;
  const spanS = (reading.at - before.at) / 1000;
  const all = reading.all - before.all;
  const failed = reading.failed - before.failed;
  show("rate", `${(all / spanS).toFixed(1)}/s`);
  show("rate-unit", `over the last ${Math.round(spanS)} s`);
  show("errors", all ? `${((100 * failed) / all).toFixed(1)} %` : "0 %");
  show("errors-unit", `of the replies of the last ${Math.round(spanS)} s are 500 and above`);
}

function faultText(fault) {
  if (!fault) return "none";
  return `${fault.kind}${fault.status ? ` (${fault.status})` : ""}, ${localTime(new Date(fault.at))}`;
}

function showModel(place, model) {
  for (const name of ["in_flight", "ceiling"]) {
    document.querySelector(`[data-model="${place}/${name}"]`).textContent = grouped(model[name]);
  }
  document.querySelector(`[data-model="${place}/last_fault"]`).textContent = faultText(model.last_fault);
  document.querySelector(`[data-model="${place}/advice"]`).textContent = model.advice;
  const badge = document.querySelector(`[data-model="${place}/state"]`);
  badge.className = `badge ${BADGES[model.state]}`;
  const state = model.state.replace("_", " ");
  badge.textContent = model.open_s && !model.rest ? `${state} ${model.open_s} s` : state;
  const { until, by } = model.rest ?? {};
  document.querySelector(`[data-model="${place}/rest"]`).textContent = until
    ? `until ${localTime(new Date(until))} (by hand: ${by})`
    : "";
}

function showLoad(load) {
  for (const name of ["in_flight", "slots_taken", "slots_limit"]) show(name, grouped(load[name]));
  show("requests", listed(load.requests, "none yet"));
  show("refused", listed(load.refused, "none"));
  show("faults", listed(load.faults, "none"));
  showRates(load);
  load.models.forEach((model, index) => showModel(index, model));
  show("age", load.is_draining ? "The service is shutting down: new requests are refused." : "Live");
}

async function refresh() {
  try {
    const reply = await fetch("/platform/api/operator/load", { headers: { accept: "application/json" } });
    if (!reply.ok) throw new Error(String(reply.status));
    showLoad(await reply.json());
  } catch {
    show("age", "Not up to date: the service did not answer.");
  }
}

async function follow() {
  for (;;) {
    if (document.visibilityState === "visible") await refresh();
    await new Promise((resume) => setTimeout(resume, EVERY_MS));
  }
}

follow();
