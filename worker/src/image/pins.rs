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
pub(super) const CLAUDE_RECIPE: u32 = 1;

/// A wheel that carries Claude Code.
pub(super) struct Wheel {
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    pub(super) file: &'static str,
    pub(super) platform: &'static str,
    pub(super) sha256: &'static str,
    /// The binary inside.
    pub(super) member: &'static str,
}

/// Claude Code for 64-bit PCs.
pub(super) const CLAUDE: Wheel = Wheel {
    package: "claude-agent-sdk",
    version: "0.2.189",
    file: "claude_agent_sdk-0.2.189-py3-none-manylinux_2_17_x86_64.whl",
    platform: "manylinux_2_17_x86_64",
    sha256: "b26a6a30a4e2cb025a6f5c95e1ce4469b38fcc51015c392f627bea7c948d67ad",
    member: "claude_agent_sdk/_bundled/claude",
};

/// Where the image has Claude Code.
pub(super) const CLAUDE_PATH: &str = "/opt/claude/claude";
