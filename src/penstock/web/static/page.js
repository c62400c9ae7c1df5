"use strict";
// Follows the API's events and keeps the table as the server would render it.

const SHOWN = 100;
const state = document.getElementById("state");
const table = document.getElementById("jobs");
// Where jobs are, one after the other: the server says it, because a pipeline does.
const STAGES = (table?.closest("table").dataset.stages || "").split(" ");
// What of a job's info is shown besides its length and size, and what it is called there.
const INFO = { codec: "codec", pages: "pages", channelId: "channel", speakerRole: "speaker" };
const unlock = document.getElementById("unlock");
const headers = () => {
  const token = sessionStorage.getItem("token");
  return token ? { authorization: `Bearer ${token}` } : {};
};

function say(text, kind) {
  state.textContent = text;
  state.className = kind || "";
}

function facts(job) {
  const found = [];
  if (job.run > 1) found.push(`run ${job.run}`);
  if (job.duration) {
    const seconds = Math.round(job.duration);
    found.push(`${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} long`);
  }
  const info = job.info || {};
  const size = job.size || info.size;
  if (size) found.push(`${size.toLocaleString("en")} bytes`);
  for (const [key, name] of Object.entries(INFO)) if (info[key]) found.push(`${name} ${info[key]}`);
  if (job.characters !== undefined) found.push(`${job.characters.toLocaleString("en")} characters`);
  if (job.truncated) found.push("text cut at the limit");
  if (job.doubtful) found.push("text doubtful");
  if (job.language) found.push(job.language);
  for (const [name, value] of Object.entries(job.facts || {})) found.push(`${name} ${value}`);
  return found.join(" · ");
}

function why(job) {
  if (!job.reason) return [];
  const told = cell("p");
  told.append(cell("strong", job.reason), job.advice ? `: ${job.advice}` : "");
  return [told];
}

function cell(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

function row(job) {
  const ended = job.stage === "Failed" || job.stage === "Cancelled";
  const step = ended ? STAGES.length : STAGES.indexOf(job.stage) + 1;
  const look = job.stage === STAGES.at(-1) ? `${job.stage} complete` : job.stage;
  const made = cell("tr", undefined, { id: job.jobId, class: look, "data-queued": job.queuedAt });
  const cells = Array.from({ length: 5 }, () => cell("td"));
  cells[0].append(cell("b", job.name || ""), " ", cell("code", job.jobId.slice(4, 16), { title: job.jobId }));
  cells[1].textContent = job.mediaType;
  cells[2].append(cell("progress", undefined, { max: STAGES.length, value: step }), " ", cell("span", job.stage));
  cells[3].append(...why(job), facts(job));
  cells[4].append(cell("time", job.updatedAt.slice(11, 19), { datetime: job.updatedAt }));
  made.append(...cells);
  return made;
}

function show(job) {
  const made = row(job);
  const known = document.getElementById(job.jobId);
  if (known) known.replaceWith(made);
  else table.prepend(made);
  while (table.rows.length > SHOWN) table.deleteRow(-1);
  document.getElementById("none").hidden = table.rows.length > 0;
  count();
}

function count() {
  const of = (look) => table.getElementsByClassName(look).length;
  const [failed, cancelled, complete] = [of("Failed"), of("Cancelled"), of("complete")];
  const under = table.rows.length - failed - cancelled - complete;
  const parts = { failed, cancelled, "under way": under, complete };
  document.getElementById("counts").textContent = Object.entries(parts)
    .filter(([, number]) => number)
    .map(([name, number]) => `${number} ${name}`)
    .join(", ");
}

async function everything() {
  const answer = await fetch(`/jobs?limit=${SHOWN}`, { headers: headers() });
  if (answer.status === 401) throw new Error("locked");
  if (!answer.ok) throw new Error(`the API answered ${answer.status}`);
  const page = await answer.json();
  table.replaceChildren();
  for (const job of page.jobs.reverse()) show(job);
  document.getElementById("none").hidden = table.rows.length > 0;
}

// EventSource cannot send a token, so the stream is read by hand.
async function follow() {
  const answer = await fetch("/events", { headers: headers() });
  if (answer.status === 401) throw new Error("locked");
  if (!answer.ok) throw new Error(`the API answered ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value.replaceAll("\r\n", "\n")).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const fields = Object.fromEntries(
        event.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]),
      );
      // Only from here on is nothing missed, so what there is is read now and not before.
      if (fields[""] === "watching") {
        await everything();
        say("Live", "live");
      }
      if (fields.event === "job") show(JSON.parse(fields.data));
      if (fields.event === "reset") await everything();
    }
  }
}

async function run() {
  for (;;) {
    try {
      unlock.hidden = true;
      await follow();
    } catch (error) {
      if (error.message === "locked") {
        say("This API asks for a token.", "lost");
        unlock.hidden = false;
        return;
      }
    }
    say("Connection lost; trying again…", "lost");
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

if (state && table) {
  unlock.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", unlock.querySelector("input").value);
    run();
  });
  run();
}
