#!/bin/sh
# An episode by opencode (npm install opencode-ai), whose tools and long prompt are left out here:
# the built-in model has no room for them. What opencode prints is the answer.
# `agentpeft gateway arithmetic_add --command "sh examples/agents/opencode_agent.sh"`
export OPENCODE_CONFIG_CONTENT='{
  "provider": {"here": {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
    "models": {"policy": {}}
  }},
  "agent": {"player": {"mode": "primary", "prompt": "Answer.", "tools": {"*": false}}},
  "share": "disabled", "autoupdate": false
}'
command -v opencode > /dev/null || exit 78
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HOME="$folder" XDG_DATA_HOME="$folder" XDG_CONFIG_HOME="$folder" XDG_STATE_HOME="$folder"
cd "$folder" || exit 78
opencode run --model here/policy --agent player --title episode "$AGENTPEFT_TASK"
