// Opens a checkout and goes to its page. Without scripts, the form leads to a page with the link.
const form = document.getElementById("payment");
const error = document.getElementById("payment-error");

async function openCheckout(amount) {
  const reply = await fetch("/platform/api/payments", {
    method: "POST",
    headers: { "content-type": "application/json", "x-cadenza-csrf": document.body.dataset.csrf },
    body: JSON.stringify({ amount }),
  });
  const body = await reply.json();
  if (!reply.ok) throw new Error(body.error.message);
  return body.url;
}

function show(message) {
  error.textContent = message;
  error.hidden = false;
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  error.hidden = true;
  try {
    location.assign(await openCheckout(form.elements.amount.value));
  } catch (problem) {
    show(problem instanceof TypeError ? "The service does not answer. Try again." : problem.message);
    button.disabled = false;
  }
});

// A browser that comes back from the checkout may show this page as it was left.
addEventListener("pageshow", () => {
  if (form) form.querySelector("button").disabled = false;
});
