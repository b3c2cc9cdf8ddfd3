//! No known secret survives in any context; ordinary command lines stay as they are.

use alloc::string::{String, ToString};
use alloc::{format, vec};

use proptest::prelude::*;

use super::*;

fn check(line: &str, expected: &str) {
    assert_eq!(Redaction::default().line(line), expected);
    assert_eq!(Redaction::default().line(expected), expected, "once more");
}

#[test]
fn secrets_of_command_lines_are_redacted() {
    for (line, expected) in [
        ("train.py --wandb-key=0a1b --lr 3e-4", "train.py --wandb-key=[redacted] --lr 3e-4"),
        ("train.py --api-key 0a1b --lr 3e-4", "train.py --api-key [redacted] --lr 3e-4"),
        ("env HF_TOKEN=abc python t.py", "env HF_TOKEN=[redacted] python t.py"),
        ("bash -c HF_TOKEN='a b' python t.py", "bash -c HF_TOKEN=[redacted] python t.py"),
        (
            "sh -c \"export WANDB_API_KEY=x && python t.py\"",
            "sh -c \"export WANDB_API_KEY=[redacted] && python t.py\"",
        ),
        ("t.py --password \"two words\" -v", "t.py --password [redacted] -v"),
        ("t.py logger.wandb.api_key=x +a=1", "t.py logger.wandb.api_key=[redacted] +a=1"),
        ("t.py --wandbApiKey=x", "t.py --wandbApiKey=[redacted]"),
        ("t.py --cfg {\"api_key\":\"x\",\"lr\":1}", "t.py --cfg {\"api_key\":[redacted],\"lr\":1}"),
        (
            "t.py --cfg {\"password\": \"x y\", \"lr\": 1}",
            "t.py --cfg {\"password\": [redacted], \"lr\": 1}",
        ),
        (
            "curl -H Authorization: Bearer abc.def url",
            "curl -H Authorization: [redacted] [redacted] url",
        ),
        (
            "curl -H Authorization: Token 0123abcd url",
            "curl -H Authorization: [redacted] [redacted] url",
        ),
        (
            "curl -H proxy-authorization:ApiKey 0123abcd url",
            "curl -H proxy-authorization:[redacted] [redacted] url",
        ),
        ("curl -H Authorization: Token --lr 1", "curl -H Authorization: [redacted] --lr 1"),
        (
            "curl -H Cookie: a=1; session=xyz; b=2 url",
            "curl -H Cookie: [redacted] [redacted] [redacted] url",
        ),
        ("curl -H Cookie:a=1; session=xyz url", "curl -H Cookie:[redacted] [redacted] url"),
        ("t.py --header Bearer abc --x", "t.py --header Bearer [redacted] --x"),
        ("t.py --data https://me:hush@host:80/a", "t.py --data https://[redacted]@host:80/a"),
        ("t.py --data s3://k:p/w@host/a", "t.py --data s3://[redacted]@host/a"),
        ("t.py https://h/?token=abc&b=1", "t.py https://h/?token=[redacted]"),
        ("t.py hf_abcdefghijklmnopqrstuvwxyz012345", "t.py [redacted]"),
        ("t.py x,ghp_0123456789abcdefABCDEF,y", "t.py x,[redacted],y"),
        ("t.py --password --api-key x", "t.py --password --api-key [redacted]"),
        ("t.py --password Bearer x", "t.py --password [redacted] [redacted]"),
    ] {
        check(line, expected);
    }
}

#[test]
fn further_names_and_shapes_are_known() {
    for (line, expected) in [
        ("t.py --pass x --lr 1", "t.py --pass [redacted] --lr 1"),
        ("env DB_PASS=x MYSQL_PWD=y t.py", "env DB_PASS=[redacted] MYSQL_PWD=[redacted] t.py"),
        ("t.py --user-pass=x --pw y", "t.py --user-pass=[redacted] --pw [redacted]"),
        ("t.py --api-keys a,b --tokens c", "t.py --api-keys [redacted] --tokens [redacted]"),
        ("t.py --passwords a API_KEYS=b", "t.py --passwords [redacted] API_KEYS=[redacted]"),
        (
            "env OPENAI_API_KEY_2=x --api_key_1 y",
            "env OPENAI_API_KEY_2=[redacted] --api_key_1 [redacted]",
        ),
        ("t.py --hf-token-value x", "t.py --hf-token-value [redacted]"),
        ("t.py {\"password\" : \"x\", \"lr\": 1}", "t.py {\"password\" : [redacted], \"lr\": 1}"),
        ("t.py {'password' :'x y', 'lr': 1}", "t.py {'password' :[redacted], 'lr': 1}"),
        ("t.py --api-key = x --lr 1", "t.py --api-key = [redacted] --lr 1"),
        ("curl -u me:hush https://h", "curl -u [redacted] https://h"),
        ("curl --user \"me:hush\" -v", "curl --user [redacted] -v"),
        ("t.py sk_live_51H8abcdefghijklmnop", "t.py [redacted]"),
        ("t.py dckr_pat_abcdefghij-klmnop_x", "t.py [redacted]"),
        ("t.py hvs.CAESIabcdefghijklmno", "t.py [redacted]"),
        ("t.py gsk_abcdefghijklmnopqrst", "t.py [redacted]"),
        ("t.py glpat-abcdefghijklmnopqrst", "t.py [redacted]"),
        ("t.py xoxb-123456789012-abc", "t.py [redacted]"),
        ("t.py eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "t.py [redacted]"),
        ("t.py --conn Server=x;Pwd=WWWSECRET; -v", "t.py --conn Server=x;Pwd=[redacted] -v"),
        ("t.py pwd=x PWD=hush", "t.py pwd=[redacted] PWD=[redacted]"),
        ("t.py --otp 123456 --db-creds=x", "t.py --otp [redacted] --db-creds=[redacted]"),
        (
            "env GIT_CRED=x t.py {\"cred\":\"x\"}",
            "env GIT_CRED=[redacted] t.py {\"cred\":[redacted]}",
        ),
        ("t.py https://hooks.slack.com/services/T000/B000/abcdefgh", "t.py https://[redacted]"),
    ] {
        check(line, expected);
    }
}

#[test]
fn ordinary_command_lines_stay_as_they_are() {
    for line in [
        "/usr/bin/python -u train.py",
        "python -m torch.distributed.run --nproc_per_node 8 --rdzv_endpoint=host:29400 train.py",
        "torchrun --standalone --nnodes=1 --nproc-per-node=8 pretrain_gpt.py --num-layers 96 \
         --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --seq-length 2048 \
         --micro-batch-size 4 --data-path /data/my-gpt2_text_document --key-value-channels 128",
        "accelerate launch --config_file a.yaml run_clm.py --model_name_or_path \
         meta-llama/Llama-2-7b-hf --max_new_tokens 128 --pad_token <pad> --use_auth_token True \
         --block_size 1024 --tokens-per-batch 4096 --token_dropout 0.1 --hub_model_id me/m",
        "deepspeed --include localhost:0,1 train.py --deepspeed ds_config.json --lr 2e-5 \
         --label-key label --image_key image --sort_key loss --monitor-key val/loss",
        "python textual_inversion.py --placeholder_token <cat> --initializer_token toy \
         --learnable_property object --resolution=512 --push_to_hub",
        "python train.py model.hidden=1024 +trainer.precision=bf16 data.path=s3://bucket/a/b \
         hydra.run.dir=out/${now:%Y-%m-%d} ~callbacks",
        "python train.py --init_method tcp://10.0.0.1:23456 --dist-url env:// --seed 1 \
         --revision 0123456789abcdef0123456789abcdef01234567",
        "pip install git+https://github.com/huggingface/transformers@v4.40.0 sk-learn-contrib-py",
        "ray start --head --port=6379 --dashboard-host 0.0.0.0 --num-gpus 8",
        "python eval.py --prompt \"Who wrote it: Bob or Alice?\" --stop-token </s> --author me",
        "python train.py --task hf_transformers --token-ids 1,2,3 --first-token 5 --passes 3",
        "train.py --tokenizer gpt2 --max-tokens 512 --num-key-value-heads 8 --train-tokens 3e11",
        "train.py --total_tokens=100 --one-pass --multi-pass 2 --num-passes 3 --image-keys a,b",
        "train.py --tokenizer-path /data/t --key-value-channels 128 --pass-through 1 --seq_key x",
        "python -u train.py --user me docker run -u 1000:1000 srun -u host:29400 a : b",
        "train.py tokenizer : gpt2 --layer-2 x --max-token-value 5 SG.x gsk_hooks r8_small",
        "env PWD=/data/x OLDPWD=/data python t.py --pwd /data --dir $PWD PWD=$HOME",
        "",
        "  two  spaces\tand a tab ",
    ] {
        check(line, line);
    }
}

#[test]
fn operators_add_names() {
    let redaction = Redaction::with_names(listed("licence, Foo-Bar,,"));
    let line = "t.py --my-licence=x --foo_bar y FOO_BAR=z --foobar w --licences v";
    let expected = "t.py --my-licence=[redacted] --foo_bar [redacted] FOO_BAR=[redacted] \
                    --foobar [redacted] --licences v";
    assert_eq!(redaction.line(line), expected);
}

#[test]
fn values_of_known_arguments_may_have_spaces() {
    let redaction = Redaction::default();
    let check = |arguments: &[&str], expected: &str| {
        assert_eq!(redaction.arguments(arguments.iter().copied()), expected);
    };
    check(&["t.py", "--password", "a b", "c"], "t.py --password [redacted] c");
    check(&["t.py", "--password=a b", "c"], "t.py --password=[redacted] c");
    check(&["sh", "-c", "HF_TOKEN=a python t.py"], "sh -c HF_TOKEN=[redacted]");
    check(&["sh", "-c", "cd x; HF_TOKEN=a t.py"], "sh -c cd x; HF_TOKEN=[redacted] t.py");
    check(&["t.py", "--password", "--lr", "1"], "t.py --password --lr 1");
    check(&["t.py", "--text=it's", "--api-key", "x"], "t.py --text=it's --api-key [redacted]");
    for header in [
        "Authorization: Token 0123abcd",
        "Authorization: ApiKey 0123abcd 4567",
        "Authorization: Digest username=\"a\", response=\"0123abcd\"",
    ] {
        check(&["curl", "-H", header, "url"], "curl -H Authorization: [redacted] url");
    }
    check(&["curl", "-H", "Cookie: a=1; session=xyz", "url"], "curl -H Cookie: [redacted] url");
    check(&["curl", "-H", "X-Api-Key:Key 0123", "url"], "curl -H X-Api-Key:[redacted] url");
    check(
        &["sh", "-c", "MY_KEY=a curl -H 'Authorization: Token b' c", "-v"],
        "sh -c MY_KEY=[redacted] -v",
    );
    check(&["t.py", "--text", "see http://host/a: b"], "t.py --text see http://host/a: b");
}

/// Text that announces a secret, up to the secret.
fn announced() -> impl Strategy<Value = String> {
    let names = prop_oneof![
        Just("--wandb-key"),
        Just("--api-key"),
        Just("--hf_token"),
        Just("--hub-token"),
        Just("--db.password"),
        Just("-password"),
        Just("--clientSecret"),
    ];
    let variables = prop_oneof![
        Just("HF_TOKEN="),
        Just("WANDB_API_KEY="),
        Just("AWS_SECRET_ACCESS_KEY="),
        Just("MYSQL_PWD="),
        Just("trainer.logger.api_key="),
        Just("{\"api_key\":\""),
        Just("\"password\": \""),
        Just("secret: "),
        Just("Bearer "),
        Just("Authorization: Basic "),
        Just("Authorization: Token "),
        Just("Authorization: Digest "),
        Just("Proxy-Authorization: ApiKey "),
        Just("authorization:Token "),
        Just("Cookie: a=1; session="),
        Just("https://h/?token="),
        Just("https://user:"),
    ];
    prop_oneof![
        (names, prop_oneof![Just("="), Just(" "), Just("=\""), Just(" '")])
            .prop_map(|(name, separator)| format!("{name}{separator}")),
        variables.prop_map(String::from),
    ]
}

/// A token of a well-known shape.
fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        "hf_[A-Za-z]{34}",
        "gh[pousr]_[A-Za-z0-9]{36}",
        "github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{20}",
        "glpat-[A-Za-z0-9]{20}",
        "sk-proj-[0-9][A-Za-z0-9]{30}",
        "(AKIA|ASIA)[A-Z0-9]{16}",
        "xox[bpars]-[0-9]{10}-[A-Za-z0-9]{20}",
        "npm_[A-Za-z0-9]{36}",
        "mtk_[0-9a-f]{8}_[A-Za-z0-9]{43}",
    ]
}

/// Surrounding text: any words, some of which announce a secret.
fn surroundings() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "[a-zA-Z0-9_./=:,-]{1,12}".boxed(),
        "[!-~]{1,12}".boxed(),
        Just("--password".to_string()).boxed(),
        Just("Bearer".to_string()).boxed(),
        Just("é=ü".to_string()).boxed(),
        announced().boxed(),
    ];
    prop::collection::vec(word, 0..6).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_announced_secret_survives(
        before in surroundings(),
        announced in announced(),
        secret in "[A-Za-z0-9]{12,24}",
        after in surroundings(),
    ) {
        let end = if announced.starts_with("https://user") { "@host" } else { "" };
        let quote = announced.chars().last().filter(|last| matches!(last, '"' | '\''));
        let quote = quote.map(String::from).unwrap_or_default();
        let line = format!("{before} {announced}{secret}{end}{quote} {after}");
        let redacted = Redaction::default().line(&line);
        prop_assert!(!redacted.contains(&secret), "{line:?} became {redacted:?}");
    }

    #[test]
    fn no_token_survives(before in surroundings(), token in token(), after in surroundings()) {
        for (left, right) in [(" ", " "), ("=", ","), ("\"", "\""), ("/", " "), ("[", "]")] {
            let line = format!("{before}{left}{token}{right}{after}");
            let redacted = Redaction::default().line(&line);
            prop_assert!(!redacted.contains(&token), "{line:?} became {redacted:?}");
        }
    }

    #[test]
    fn a_redacted_line_is_not_redacted_again(line in surroundings(), any in "\\PC{0,60}") {
        for line in [line, any] {
            let once = Redaction::default().line(&line);
            prop_assert_eq!(&Redaction::default().line(&once), &once, "{:?}", line);
        }
    }

    /// Nothing is reordered or made up: without secrets the line is the same. No word is as long
    /// as a token.
    #[test]
    fn words_without_a_secret_stay(line in "( *[a-s0-9/_-]{1,15} ){0,8}") {
        let is_plain = !["api", "key", "pass", "secret", "auth", "credential", "cookie", "sig"]
            .iter()
            .any(|word| line.contains(word));
        prop_assume!(is_plain);
        prop_assert_eq!(Redaction::default().line(&line), line);
    }
}
