"""The drawing of a graph says what the graph says: who needs whom can be read off it again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fumehood.cli.rails import Rail, order, rails

Needs = dict[str, list[str]]

DOWN = set("●│├┤┼")
"""From these a line goes on below."""
RIGHT, LEFT = set("├╰┼┴─│●"), set("┤╯┼┴─│●")
TURNS = set("├┤┼╰╯┴")


def drawn(needs: Needs) -> list[str]:
    return [rail.before + "●" + rail.after for rail in rails(needs)]


def read(lines: list[Rail]) -> Needs:
    """The graph of a drawing, by its characters alone."""
    found: Needs = {}
    owners: dict[int, str] = {}
    above = ""
    for line in lines:
        text, own = line.before + "●" + line.after, len(line.before)
        columns = {own} | reached(text, own)
        needs = {
            owners[column]
            for column in columns
            if column in owners and (column != own or above[own : own + 1] in tuple(DOWN))
        }
        found[line.step] = sorted(needs)
        owners = {column: owner for column, owner in owners.items() if text[column] in DOWN and column != own}
        owners[own] = line.step
        above = text
    return found


def reached(text: str, own: int) -> set[int]:
    """The columns of the rails that the line of a step turns into."""
    found = set()
    for direction, goes_on in ((1, LEFT), (-1, RIGHT)):
        column = own + direction
        while 0 <= column < len(text) and text[column] in goes_on | {"─"} and joined(text, column, direction):
            if text[column] in TURNS:
                found.add(column)
            column += direction
    return found


def joined(text: str, column: int, direction: int) -> bool:
    """A rail that is crossed has a line on both sides of it; beside one that is not there is none."""
    return text[column] == "─" or text[column - direction] == "─"


@st.composite
def graphs(draw: st.DrawFn) -> Needs:
    """Steps in any order, each needing some of those before it in another one."""
    count = draw(st.integers(1, 12))
    names = [f"s{number}" for number in range(count)]
    needs = {
        name: draw(st.lists(st.sampled_from(names[:at]), unique=True)) if at else [] for at, name in enumerate(names)
    }
    written = draw(st.permutations(names))
    return {name: needs[name] for name in written}


@given(graphs())
def test_a_drawing_says_who_needs_whom(needs: Needs) -> None:
    assert read(rails(needs)) == {step: sorted(needed) for step, needed in needs.items()}


@given(graphs())
def test_each_step_stands_once_and_behind_what_it_needs(needs: Needs) -> None:
    found = [rail.step for rail in rails(needs)]
    assert sorted(found) == sorted(needs)
    assert all(found.index(need) < found.index(step) for step, needed in needs.items() for need in needed)


@given(graphs())
def test_all_lines_are_of_one_length(needs: Needs) -> None:
    assert len({len(line) for line in drawn(needs)}) == 1


def test_steps_that_were_written_in_order_stay_in_it() -> None:
    assert order({"b": [], "a": ["b"], "d": [], "c": ["a"]}) == ["b", "a", "d", "c"]
    assert order({"a": ["b"], "b": []}) == ["b", "a"]


def test_a_fork_and_a_join() -> None:
    needs = {"fetch": [], "lint": ["fetch"], "test": ["fetch"], "publish": ["lint", "test"]}
    assert drawn(needs) == ["●  ", "├─●", "● │", "●─╯"]


def test_a_rail_that_is_only_crossed_stays_whole() -> None:
    needs = {"a": [], "b": [], "c": [], "d": ["a", "c"], "e": ["b", "d"]}
    assert drawn(needs) == ["●    ", "│ ●  ", "│ │ ●", "●─│─╯", "●─╯  "]


def test_strangers_do_not_stand_below_each_other() -> None:
    assert drawn({"a": [], "b": [], "c": []}) == ["●  ", "  ●", "●  "]


def test_no_steps_are_no_lines() -> None:
    assert rails({}) == []
