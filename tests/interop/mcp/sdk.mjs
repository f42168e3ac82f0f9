// @modelcontextprotocol/sdk, which speaks 2025-11-25: over HTTP, and on standard
// input and output through `counterfoil mcp` (COUNTERFOIL names the program).
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { authorization, check, intent, key, server } from "./common.mjs";

const transports = {
  http: () => new StreamableHTTPClientTransport(new URL("/mcp", server), { requestInit: { headers: authorization } }),
  stdio: () => new StdioClientTransport({
    command: process.env.COUNTERFOIL ?? "counterfoil", args: ["mcp"],
    env: { COUNTERFOIL_SERVER: server, COUNTERFOIL_KEY: key },
  }),
};

for (const [name, transport] of Object.entries(transports)) {
  const client = new Client({ name: "interop", version: "1" }, { capabilities: { elicitation: { form: {} } } });
  const asked = [];
  client.setRequestHandler(ElicitRequestSchema, (request) => {
    asked.push(request.params);
    return { action: "accept", content: { decision: "abandon" } };
  });
  await client.connect(transport());
  // With the list the client holds every answer against its tool's output schema.
  const { tools } = await client.listTools();
  check(`${name}: nine tools`, tools.length === 9, tools.map((t) => t.name));
  const call = async (tool, args, options) => {
    const r = await client.callTool({ name: tool, arguments: args }, undefined, options);
    return { failed: r.isError === true, ...r.structuredContent };
  };
  const arguments_ = intent(name, "example", "plain");
  const made = await call("submit_operation", arguments_);
  check(`${name}: submitted`, made.id?.startsWith("op_"), made);
  const again = await call("submit_operation", arguments_);
  check(`${name}: the same again is the same`, again.id === made.id && again.original_status === 202, again);
  const heard = [];
  const done = await call("wait_operation", { id: made.id, wait_seconds: 50 }, { onprogress: (p) => heard.push(p.message) });
  check(`${name}: succeeded`, done.state === "succeeded", done);
  check(`${name}: progress was heard`, heard.length > 0, heard);
  const result = await call("get_result", { id: made.id });
  check(`${name}: the result`, result.included && result.text.length > 0, result);
  const refused = await call("submit_operation", { provider: "example", params: {} });
  check(`${name}: a refusal is a problem`, refused.failed && refused.code === "idempotency_key_missing" && refused.hint, refused);
  for (const [tool, args] of Object.entries({
    get_operation: { id: made.id }, get_timeline: { id: made.id }, list_operations: { limit: 3 }, get_capabilities: {},
  })) {
    const r = await call(tool, args);
    check(`${name}: ${tool}`, !r.failed, r);
  }
  // Without a kind the user is asked, where the service can reach it: not over HTTP
  // without sessions, as this revision has it.
  const lost = await call("submit_operation", intent(`${name}-lost`, "example-ask", "dropped"));
  const stopped = await call("wait_operation", { id: lost.id, wait_seconds: 50 });
  check(`${name}: stopped`, stopped.state === "quarantined" && stopped.done && !stopped.terminal, stopped);
  const decided = await call("decide_operation", { id: lost.id, idempotency_key: "d" });
  if (name === "stdio") {
    check(`${name}: the user was asked`, asked.length === 1 && decided.state === "abandoned", [asked, decided]);
  } else {
    check(`${name}: the user cannot be asked`, decided.failed && decided.errors?.[0]?.field === "/kind", decided);
  }
  await client.close();
}
