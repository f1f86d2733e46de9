#!/bin/sh
# An agent in a shell: it asks the model by curl, and prints the answer. Needs curl and jq.
#
#   agentpeft gateway arithmetic_add --command "sh examples/agents/curl_agent.sh"
set -eu
jq -n --arg task "$AGENTPEFT_TASK" '{model: "policy", messages: [{role: "user", content: $task}]}' |
  curl -sS --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
    -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" -d @- |
  jq -r '.choices[0].message.content'
