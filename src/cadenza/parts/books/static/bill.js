// Puts the text of a chosen file into the field of the bill, where it can be looked at before it is sent.
const BYTES_MAX = 64 * 1024; // of the whole form
const place = document.getElementById("file");
const mistake = place.querySelector("[role=alert]");
const bill = document.querySelector("textarea[name=bill]");

// What is wrong with the file, or nothing: then its text is in the field.
async function read(file) {
  if (file.size > BYTES_MAX) return "This file is too large: the form takes 64 KiB. Use cadenza reconcile.";
  try {
    bill.value = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    return "This file is not text. Export the bill as CSV, in UTF-8.";
  }
  return "";
}

place.hidden = false;
place.querySelector("input").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  mistake.textContent = file ? await read(file) : "";
});
