//! The four trees, made inside of the computer by the agent itself, and the change of one 4 KB file.

/// A tree of so many files.
pub struct Tree {
    pub name: &'static str,
    pub files: u32,
    pub megabytes: u64,
    kind: Kind,
}

enum Kind {
    /// A hundred files a directory, text that compresses.
    Flat,
    /// Seven files a directory, two directories a package.
    Packages,
    /// Bytes that do not compress.
    Large,
}

pub const TREES: [Tree; 4] = [
    Tree { name: "1 MB, 50 files", files: 50, megabytes: 1, kind: Kind::Flat },
    Tree { name: "100 MB, 10,000 files", files: 10_000, megabytes: 100, kind: Kind::Flat },
    Tree { name: "560 MB, 65,000 files", files: 65_000, megabytes: 560, kind: Kind::Packages },
    Tree { name: "400 MB, 20 files", files: 20, megabytes: 400, kind: Kind::Large },
];

const MAKE: &str = r#"
import os, random, sys
files, total, kind = int(sys.argv[1]), int(sys.argv[2]) << 20, sys.argv[3]
r = random.Random(7)
words = ["".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(2, 9))) for _ in range(4000)]
text = " ".join(r.choice(words) for _ in range(700000)).encode()
os.chdir("/workspace")
for n in range(files):
    d = {"flat": "d%d" % (n // 100), "large": ".", "packages": "node_modules/p%d/%s" % (n // 14, "lib" if n // 7 % 2 else "src")}[kind]
    os.makedirs(d, exist_ok=True)
    size = total // files if kind == "large" else int(total / files * (0.2 + 1.6 * r.random()))
    with open("%s/f%d" % (d, n), "wb") as f:
        if kind == "large":
            f.write(r.randbytes(size))
        else:
            at = r.randrange(len(text) - size)
            f.write(b"file %d\n" % n + text[at:at + size])
"#;

const CHANGE: &str = r#"
import os, random, sys
files, kind, round = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
n = files // 9 * (round + 1)
d = {"flat": "d%d" % (n // 100), "large": ".", "packages": "node_modules/p%d/%s" % (n // 14, "lib" if n // 7 % 2 else "src")}[kind]
with open("/workspace/%s/f%d" % (d, n), "r+b" if kind == "large" else "wb") as f:
    f.write(random.randbytes(4096))
"#;

impl Tree {
    fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Flat => "flat",
            Kind::Packages => "packages",
            Kind::Large => "large",
        }
    }

    /// The command that makes it.
    pub fn make(&self) -> String {
        python(MAKE, &format!("{} {} {}", self.files, self.megabytes, self.kind()))
    }

    /// The command that gives one file 4 KB of new content; each round another file.
    pub fn change(&self, round: u32) -> String {
        python(CHANGE, &format!("{} {} {round}", self.files, self.kind()))
    }
}

/// One line for the scripted agent, whatever the script has.
fn python(script: &str, arguments: &str) -> String {
    let hex: String = script.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("python3 -c 'exec(bytes.fromhex(\"{hex}\").decode())' {arguments}")
}
