// Puts the text of a chosen file into the field of the bill, where it can be looked at before it is sent.
const place = document.getElementById("file");
const bill = document.querySelector("textarea[name=bill]");
place.hidden = false;
place.querySelector("input").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (file) bill.value = await file.text();
});
