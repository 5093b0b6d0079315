//! What goes into a sandbox image, each pinned: the one file to change for a newer harness or another set of packages.
//!
//! Pure data. Layers are named by a hash of what they are made from, so a change here makes new layers and leaves the
//! old ones to whoever still uses them.

/// Release of the Debian base.
pub(super) const SUITE: &str = "bookworm";
/// The same release from a registry.
pub(super) const REGISTRY_BASE: &str = "debian:bookworm-slim";

/// What agents expect of a machine.
pub(super) const PACKAGES: [&str; 16] = [
    "bash",
    "ca-certificates",
    "curl",
    "diffutils",
    "file",
    "findutils",
    "git",
    "jq",
    "less",
    "make",
    "patch",
    "procps",
    "python3",
    "ripgrep",
    "unzip",
    "xz-utils",
];

/// Counts changes of how a layer is made that its other inputs do not show.
pub(super) const BASE_RECIPE: u32 = 1;
const CLAUDE_RECIPE: u32 = 1;
const CODEX_RECIPE: u32 = 1;

/// An agent program and the wheel that carries it.
pub(super) struct Program {
    /// As in labels and options.
    pub(super) name: &'static str,
    pub(super) recipe: u32,
    pub(super) wheel: Wheel,
    /// Where the image has its files.
    pub(super) directory: &'static str,
    /// What is taken out of the wheel, and its path below the directory.
    pub(super) members: &'static [(&'static str, &'static str)],
}

/// A wheel of the public package index.
pub(super) struct Wheel {
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    pub(super) file: &'static str,
    pub(super) platform: &'static str,
    pub(super) sha256: &'static str,
}

/// Claude Code for 64-bit PCs.
pub(super) const CLAUDE: Program = Program {
    name: "claude",
    recipe: CLAUDE_RECIPE,
    wheel: Wheel {
        package: "claude-agent-sdk",
        version: "0.2.189",
        file: "claude_agent_sdk-0.2.189-py3-none-manylinux_2_17_x86_64.whl",
        platform: "manylinux_2_17_x86_64",
        sha256: "b26a6a30a4e2cb025a6f5c95e1ce4469b38fcc51015c392f627bea7c948d67ad",
    },
    directory: "/opt/claude",
    members: &[("claude_agent_sdk/_bundled/claude", "claude")],
};

/// OpenAI Codex for 64-bit PCs. The layout is the package's own: without its helpers beside it, it can run no tool.
pub(super) const CODEX: Program = Program {
    name: "codex",
    recipe: CODEX_RECIPE,
    wheel: Wheel {
        package: "openai-codex-cli-bin",
        version: "0.163.0",
        file: "openai_codex_cli_bin-0.163.0-py3-none-manylinux_2_17_x86_64.whl",
        platform: "manylinux_2_17_x86_64",
        sha256: "76db41fb07fdf9ddacbe892b48d21dfde270031ec0f5666b5e558114355f006d",
    },
    directory: "/opt/codex",
    members: &[
        ("codex_cli_bin/codex-package.json", "codex-package.json"),
        ("codex_cli_bin/bin/codex", "bin/codex"),
        ("codex_cli_bin/bin/codex-code-mode-host", "bin/codex-code-mode-host"),
        ("codex_cli_bin/codex-path/rg", "codex-path/rg"),
        ("codex_cli_bin/codex-resources/bwrap", "codex-resources/bwrap"),
    ],
};
