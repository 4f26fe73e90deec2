#!/usr/bin/env python3
"""Makes chess games as text. Needs only Debian's packages stockfish and scid-data, and Python's standard library.

    games.py make OUT                 plays games, and writes OUT/train.txt and OUT/valid.txt, one game per line
    games.py prompts GAMES            prints beginnings of the games in the file GAMES, one per line
    games.py legal GENERATED          counts the legal moves in texts of a model; GENERATED is the output of
                                      fsdp-generate --prompts BEGINNINGS --json

Moves are written in the notation of chess engines ("g1f3", "e7e8q"), as in the data set laion/strategic_game_chess, so that the engine can
check them and no chess library is needed. Each game begins with a different opening of scid's list; then the engine plays against itself. It
searches a fixed number of positions for each move, with one thread, so that the same --seed gives the same games.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading

ENGINE = shutil.which("stockfish", path=os.environ.get("PATH", "") + ":/usr/games")
OPENINGS = "/usr/share/scid/data/scid.eco"


class Engine:
    """A chess engine that speaks UCI, the Universal Chess Interface."""

    def __init__(self):
        self.process = subprocess.Popen([ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask("uci", "uciok")

    def ask(self, commands, last):
        """Sends the commands; returns the output up to the line that begins with `last`."""
        self.process.stdin.write(commands + "\n")
        self.process.stdin.flush()
        lines = []
        while not (lines and lines[-1].startswith(last)):
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"games.py: {ENGINE} has ended (it printed: {lines[-1] if lines else 'nothing'})")
            lines.append(line.rstrip("\n"))
        return lines

    def legal_moves(self, moves):
        """The legal moves after `moves`, which must be legal themselves: the engine ignores all from the first illegal one on."""
        lines = self.ask(f"position startpos moves {' '.join(moves)}\ngo perft 1", "Nodes searched")
        return [line.split(":")[0] for line in lines if re.match(r"[a-h][1-8][a-h][1-8][qrbn]?:", line)]

    def board(self, moves):
        """The piece on each square: {"e1": "K", ...}, white in capitals."""
        lines = self.ask(f"position startpos moves {' '.join(moves)}\nd", "Checkers")
        fen = next(line for line in lines if line.startswith("Fen: ")).split()[1]
        rows = re.sub(r"\d", lambda digit: " " * int(digit.group()), fen).split("/")
        return {file + str(8 - row): piece for row, pieces in enumerate(rows) for file, piece in zip("abcdefgh", pieces)}

    def play(self, moves, nodes, most_moves):
        """Plays against itself, starting after `moves`, until the game is over or repeats itself."""
        moves = list(moves)
        self.ask("ucinewgame\nisready", "readyok")  # forgets earlier games
        while len(moves) < most_moves and moves[-4:] != moves[-8:-4]:
            move = self.ask(f"position startpos moves {' '.join(moves)}\ngo nodes {nodes}", "bestmove")[-1].split()[1]
            if move == "(none)":
                break
            moves.append(move)
        return moves


def engine_of_this_thread(own=threading.local()):
    if not hasattr(own, "engine"):
        own.engine = Engine()
    return own.engine


def long_notation(line):
    """Converts the moves of an opening from the short notation of books ("Nbd7", "exd5", "O-O") to the engine's."""
    engine, moves = engine_of_this_thread(), []
    for word in line:
        white, board = len(moves) % 2 == 0, engine.board(moves)
        short = {"O-O": "Kg1" if white else "Kg8", "O-O-O": "Kc1" if white else "Kc8"}.get(word.rstrip("+#!?"), word)
        piece, file, rank, target, promotion = re.match(r"([KQRBN]?)([a-h]?)([1-8]?)x?([a-h][1-8])=?([QRBN]?)", short).groups()
        piece = (piece or "P") if white else (piece or "P").lower()
        meant = [move for move in engine.legal_moves(moves)
                 if move[2:4] == target and board[move[:2]] == piece and file in move[0] and rank in move[1] and
                 move[4:] == promotion.lower() and (word[0] != "O" or move[0] == "e")]
        if len(meant) != 1:
            sys.exit(f"games.py: {word} in '{' '.join(line)}' can be {meant or 'no move'}; is {OPENINGS} complete?")
        moves += meant
    return moves


def openings():
    """The openings in scid's list that are not the beginning of another one."""
    text = re.sub(r"^#.*", "", pathlib.Path(OPENINGS).read_text(encoding="latin-1"), flags=re.M)
    lines = sorted({tuple(re.sub(r"\d+\.+", "", moves).split()) for moves in re.findall(r'"[^"]*"\s+([^*]+)\*', text)})
    return [line for line, after in zip(lines, lines[1:] + [()]) if after[:len(line)] != line]


def make(options):
    if not pathlib.Path(OPENINGS).exists():
        sys.exit(f"games.py: {OPENINGS} does not exist; install Debian's package scid-data")
    known, wanted = openings(), options.games + options.valid_games
    if wanted > len(known):
        sys.exit(f"games.py: {wanted} games are too many ({OPENINGS} has {len(known)} openings, one for each); give smaller "
                 "--games or --valid-games")
    lines = random.Random(options.seed).sample(known, wanted)
    out, games = pathlib.Path(options.out), []
    out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        play = lambda line: engine_of_this_thread().play(long_notation(line), options.nodes, options.max_moves)
        for game in threads.map(play, lines):
            games.append(" ".join(game) + "\n")
            if len(games) % 50 == 0:
                print(f"{len(games)} of {len(lines)} games", file=sys.stderr)
    (out / "train.txt").write_text("".join(games[:options.games]))
    (out / "valid.txt").write_text("".join(games[options.games:]))


def prompts(options):
    for game in pathlib.Path(options.games).read_text().splitlines():
        moves = game.split()
        for count in options.after:
            if count < len(moves):
                print(" ".join(moves[:count]))


def legal(options):
    right, all_of = collections.Counter(), collections.Counter()
    engine = Engine()
    with open(options.generated) as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = json.loads(line)
                moves = text["prompt"].split()
                text["text"].split()
            except (ValueError, KeyError, TypeError, AttributeError):
                sys.exit(f"games.py: line {number} of {options.generated} is not output of fsdp-generate --prompts FILE --json "
                         "(JSON with prompt and text); give a file of that output")
            # A text without a leading space changes the prompt's last move or ends the game, so it counts as no move.
            move = (text["text"].split() or [""])[0] if text["text"].startswith(" ") else ""
            all_of[len(moves)] += 1
            right[len(moves)] += move in engine.legal_moves(moves)
    if not all_of:
        sys.exit(f"games.py: {options.generated} has no lines; it should be the output of fsdp-generate --prompts FILE --json")
    for count in sorted(all_of):
        print(f"after {count:3} moves  {right[count]:4} of {all_of[count]:4} are legal")
    print(f"legal {sum(right.values())} of {sum(all_of.values())}, {100 * sum(right.values()) / sum(all_of.values()):.1f} %")


def count(least):
    """Returns a parser for arguments that are whole numbers of at least `least`."""
    def read(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number, {least} or more")
        return int(text)
    return read


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="make|prompts|legal")
    command = commands.add_parser("make")
    command.add_argument("out", metavar="OUT")
    command.add_argument("--games", type=count(1), default=500, help="for training (default: %(default)s)")
    command.add_argument("--valid-games", type=count(0), default=40, help="held out (default: %(default)s)")
    command.add_argument("--nodes", type=count(1), default=1000, help="positions that the engine searches for a move (default: %(default)s)")
    command.add_argument("--max-moves", type=count(1), default=100, help="of both sides together; longer games are cut (default: %(default)s)")
    command.add_argument("--seed", type=count(0), default=1, help="selects the openings (default: %(default)s)")
    command.set_defaults(run=make)
    command = commands.add_parser("prompts")
    command.add_argument("games", metavar="GAMES")
    command.add_argument("--after", type=lambda text: [count(1)(number) for number in text.split(",")], default="10,20,30,40,60",
                         help="numbers of moves, of both sides together (default: %(default)s)")
    command.set_defaults(run=prompts)
    command = commands.add_parser("legal")
    command.add_argument("generated", metavar="GENERATED")
    command.set_defaults(run=legal)
    options = parser.parse_args()
    if not ENGINE:
        sys.exit("games.py: there is no stockfish; install Debian's package stockfish")
    try:
        options.run(options)
    except OSError as problem:
        sys.exit(f"games.py: {problem.filename or 'a file'} cannot be read or written ({problem.strerror}); give another one")
    except UnicodeDecodeError:
        sys.exit("games.py: the file is no text in UTF-8; give another one")


if __name__ == "__main__":
    main()
