// @modelcontextprotocol/client, pinned to 2026-07-28, and the official Tasks
// extension over it: an operation as a task to its result, and one that stops,
// is decided through a form, and ends.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createApplicationInputHandler, createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";
import { authorization, check, intent, server } from "./common.mjs";

const protocolVersion = "2026-07-28";
const clientInfo = { name: "interop", version: "1" };
const clientCapabilities = { elicitation: { form: {} }, extensions: { "io.modelcontextprotocol/tasks": {} } };

const client = new Client(clientInfo, { capabilities: clientCapabilities, versionNegotiation: { mode: { pin: protocolVersion } } });
await client.connect(new StreamableHTTPClientTransport(new URL("/mcp", server), { requestInit: { headers: authorization } }));
const { tools } = await client.listTools();
check("nine tools", tools.length === 9, tools.map((t) => t.name));
const plain = await client.callTool({ name: "get_capabilities", arguments: {} });
check("a call", plain.structuredContent?.providers?.length > 0, plain);

// The extension's package leaves the requests that the client cannot read to us.
let id = 0;
async function rawDispatch(request, options) {
  const params = request.params ?? {};
  const response = await fetch(new URL("/mcp", server), {
    method: "POST", signal: options?.signal,
    headers: {
      ...authorization, "Content-Type": "application/json", Accept: "application/json, text/event-stream",
      "Mcp-Protocol-Version": protocolVersion, "Mcp-Method": request.method, "Mcp-Name": params.taskId ?? params.name ?? "",
    },
    body: JSON.stringify({ jsonrpc: "2.0", id: ++id, ...request }),
  });
  const text = await response.text();
  const data = response.headers.get("Content-Type")?.startsWith("text/event-stream")
    ? text.split("\n").filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)).at(-1)
    : text;
  const message = JSON.parse(data);
  return message.error ? { kind: "error", error: message.error } : { kind: "result", result: message.result };
}

const asked = [];
const session = createTaskSessionFromClient(client, {
  endpointId: "interop", rawDispatch, v2RequestFraming: { protocolVersion, clientInfo, clientCapabilities },
  onInputRequest: createApplicationInputHandler({
    elicitation: (request, context) => {
      asked.push([context.inputId, request.params.requestedSchema.properties.decision.enum]);
      return { action: "accept", content: { decision: "abandon", why: "interop" } };
    },
    sampling: () => { throw new Error("nobody asked for this"); },
    roots: () => { throw new Error("nobody asked for this"); },
  }),
});

const good = await session.callTool("submit_operation", intent("task", "example", "plain"));
check("submit answers with a task", good.kind === "task", good.kind);
const result = resultFromTaskOutcome((await good.settle()).outcome);
check("the task completes with the result", result.structuredContent?.state === "succeeded" && result.structuredContent.output?.included, result);

const stopped = await session.callTool("submit_operation", intent("decision", "example-ask", "dropped"));
const settled = await stopped.settle();
check("a decision was asked for once", asked.length === 1 && /^q-\d+$/.test(asked[0][0]) && asked[0][1].includes("abandon"), asked);
const ended = resultFromTaskOutcome(settled.outcome);
check("the task ends as decided", ended.isError && ended.structuredContent?.state === "abandoned", ended);

await session.close();
await client.close();
