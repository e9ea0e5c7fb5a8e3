// Attaches files to the message that is being written: by a button, by dropping them on the page, and by pasting.

import { estimate } from "./chat_cost.js";
import { button, byId, element } from "./chat_elements.js";
import { BYTES_MAX, FILES_MAX, IMAGES } from "./chat_files.js";
import { measure } from "./chat_stream.js";

const UNITS = ["B", "kB", "MB", "GB"];
const THUMBNAIL_PX = 48;

function sizeText(bytes) {
  let unit = 0;
  for (; bytes >= 999.5 && unit < UNITS.length - 1; unit += 1) bytes /= 1000;
  return `${unit && bytes < 9.95 ? bytes.toFixed(1) : Math.round(bytes)} ${UNITS[unit]}`;
}

// A list of files whose data is in the store. With `remove`, each has a button.
export function fillChips(list, files, store, remove) {
  list.hidden = !files.length;
  list.replaceChildren(...files.map((file) => chip(file, store, remove)));
}

function chip(file, store, remove) {
  const made = element("li", { className: "badge" }, element("span", { className: "truncate", textContent: file.name, title: file.name }));
  made.append(element("span", { className: "muted", textContent: sizeText(file.size) }));
  if (remove) made.append(element("span", { className: "muted measured" }));
  if (file.isKept === false) {
    const title = "This browser did not store the file. It cannot be sent after the page is closed.";
    made.append(element("span", { className: "warn", textContent: "not kept", title }));
  }
  if (remove) made.append(button("×", `Remove ${file.name}`, () => remove(file)));
  if (IMAGES.includes(file.type)) addThumbnail(made, file, store).catch(() => {}); // not an image after all
  return made;
}

// What a file that is not sent yet has, and what it costs at least with a question, by the price of the class.
function measuredText({ parts, tokens, least_tokens: least }) {
  const price = Number(byId("class").selectedOptions[0].dataset.price);
  const cost = price ? estimate(least, price) : "";
  const isWhole = least === tokens;
  const textContent = [parts, `${tokens.toLocaleString()} tokens`, cost && `${isWhole ? "" : "from "}${cost} a question`].filter(Boolean).join(" · ");
  const whole = price ? `All of it would cost ${estimate(tokens, price)}.` : "";
  return { textContent, title: isWhole ? "A question takes the whole file." : `A question takes the parts that fit it. ${whole}` };
}

// The middle of an image, in a square.
async function addThumbnail(made, file, store) {
  const data = await store.find(file.id);
  if (!data) return;
  const image = await createImageBitmap(data);
  const { width, height } = image;
  const side = Math.min(width, height);
  const canvas = element("canvas", { width: THUMBNAIL_PX, height: THUMBNAIL_PX });
  canvas.getContext("2d").drawImage(image, (width - side) / 2, (height - side) / 2, side, side, 0, 0, THUMBNAIL_PX, THUMBNAIL_PX);
  image.close();
  made.prepend(canvas);
}

// What the service does not take, in words; the field of the page knows it.
function refusal({ name, type }) {
  const { accept, dataset } = byId("attach-files");
  const takesImages = dataset.images !== "0";
  if (IMAGES.includes(type)) return takesImages ? "" : `${name}: this service takes no images.`;
  return accept && `${name}: this service takes no files${takesImages ? " but images" : ""}.`;
}

export class Attachments {
  files = [];
  added = Promise.resolve(); // once all files that were chosen are read

  // `before` gives the files of the earlier messages: they are sent again with every message, and count.
  constructor(store, before) {
    this.store = store;
    this.before = before;
    this.#listen();
  }

  show(files) {
    this.files = [...files];
    this.#problems([]);
    this.#showChips();
  }

  add(chosen) {
    const all = [...chosen]; // the browser's own list does not outlive its event
    this.added = this.added.then(() => this.#addAll(all));
  }

  async #addAll(chosen) {
    const problems = [];
    const over = [];
    const measuring = [];
    const attached = this.files.length;
    for (const file of chosen) {
      const others = [...this.before(), ...this.files];
      const bytes = others.reduce((sum, one) => sum + one.size, file.size);
      const refused = refusal(file);
      if (refused) problems.push(refused);
      else if (!file.size) problems.push(`${file.name} is empty.`);
      else if (others.length >= FILES_MAX) over.push(file.name);
      else if (bytes > BYTES_MAX) problems.push(`${file.name} (${sizeText(file.size)}) is too large: all files together can have 24 MB.`);
      else await this.#load(file, measuring).catch(() => problems.push(`${file.name} cannot be read. A folder cannot be attached.`));
    }
    if (over.length) problems.push(`At most ${FILES_MAX} files can be sent, with those of earlier messages. Left out: ${over.join(", ")}.`);
    this.#problems(problems);
    this.#showChips();
    void Promise.all(measuring).then(() => this.#announce(attached));
  }

  // Files are refused while they are measured, too.
  #announce(before) {
    const count = this.files.length;
    if (count > before) byId("status").textContent = `${count} ${count === 1 ? "file is" : "files are"} attached.`;
  }

  async #load(file, measuring) {
    const loaded = await this.store.load(file);
    this.files.push(loaded);
    if ("measured" in byId("attach-files").dataset && !IMAGES.includes(loaded.type)) measuring.push(this.#measure(loaded));
  }

  // A file that cannot be read is taken out again. If it cannot be measured now, it is sent without.
  async #measure(file) {
    try {
      file.measured = await measure(file.name, await this.store.find(file.id));
    } catch (error) {
      if (error.status !== 400 || !this.files.includes(file)) return;
      this.files.splice(this.files.indexOf(file), 1);
      this.#addProblem(error.message);
      this.#showChips();
    }
    this.#showMeasured();
  }

  // The chips stay as they are: one of their buttons may have the focus.
  #showMeasured() {
    const places = byId("files").querySelectorAll(".measured");
    this.files.forEach(({ measured }, index) => measured && Object.assign(places[index], measuredText(measured)));
  }

  #remove(file) {
    const place = this.files.indexOf(file);
    this.files.splice(place, 1);
    this.#problems([]);
    this.#showChips();
    const buttons = byId("files").querySelectorAll("button");
    (buttons[Math.min(place, buttons.length - 1)] ?? byId("attach")).focus();
  }

  #showChips() {
    fillChips(byId("files"), this.files, this.store, (file) => this.#remove(file));
    this.#showMeasured();
  }

  #problems(problems) {
    byId("files-problem").replaceChildren();
    byId("files-problem").parentElement.hidden = true;
    problems.forEach((problem) => this.#addProblem(problem));
  }

  #addProblem(problem) {
    byId("files-problem").append(element("li", { textContent: problem }));
    byId("files-problem").parentElement.hidden = false;
  }

  #listen() {
    const input = byId("attach-files");
    byId("class").addEventListener("change", () => this.#showMeasured());
    byId("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      this.add(input.files);
      input.value = "";
    });
    document.addEventListener("paste", (event) => {
      const { types, files } = event.clipboardData;
      if (!files.length || types.includes("text/html") || byId("question").open) return; // office programs add a picture of the text
      event.preventDefault();
      this.add(files);
    });
    const hasFiles = (event) => event.dataTransfer.types.includes("Files");
    const mark = (isOver) => byId("chat").classList.toggle("dropping", isOver);
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault(); // the browser would open the file instead of the page
      mark(true);
    });
    document.addEventListener("dragleave", (event) => event.relatedTarget || mark(false));
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(false);
      this.add(event.dataTransfer.files);
    });
  }
}
