"""Generated Pathfinder images: a flood fill that knows nothing of how they were drawn finds every label."""

import collections

import numpy as np
import pytest

from longmix.data_prep.tasks.images.pathfinder_images import JOINED, PATH_LENGTHS, make_image

COUNT, SEED = 60, 0
DISC = 255


@pytest.fixture(scope="module", params=PATH_LENGTHS)
def images(request):
    return request.param, [make_image(request.param, SEED, "train", index) for index in range(COUNT)]


def components(pixels, reach):
    """Sets of pixels that are joined by steps of at most `reach` rows and columns."""
    left, found = set(pixels), []
    while left:
        queue = collections.deque([left.pop()])
        component = set(queue)
        while queue:
            row, column = queue.popleft()
            for there in [(row + y, column + x) for y in range(-reach, reach + 1) for x in range(-reach, reach + 1)]:
                if there in left:
                    left.remove(there)
                    component.add(there)
                    queue.append(there)
        found.append(component)
    return found


def pixels_where(condition):
    return {tuple(place) for place in np.argwhere(condition).tolist()}


def steps_between(pixels, begin, end, reach):
    """Fewest steps from one set of pixels to another, over `pixels`."""
    distance = dict.fromkeys(begin, 0)
    queue = collections.deque(begin)
    while queue:
        row, column = queue.popleft()
        if (row, column) in end:
            return distance[row, column]
        for there in [(row + y, column + x) for y in range(-reach, reach + 1) for x in range(-reach, reach + 1)]:
            if there in pixels and there not in distance:
                distance[there] = distance[row, column] + 1
                queue.append(there)
    return None


def test_a_flood_fill_finds_every_label(images):
    for image, label in images[1]:
        assert image.shape == (32, 32) and image.dtype == np.uint8
        discs = components(pixels_where(image == DISC), 1)
        assert len(discs) == 2 and all(4 <= len(disc) <= 9 for disc in discs)
        holding = [[disc <= component for disc in discs] for component in components(pixels_where(image > 0), JOINED)]
        assert [True, True] in holding if label else holding.count([True, False]) == holding.count([False, True]) == 1


def test_the_joining_path_is_as_long_as_asked_for(images):
    length, made = images
    fewest = []
    for image, label in made:
        if label:
            discs = components(pixels_where(image == DISC), 1)
            fewest.append(steps_between(pixels_where(image > 0), *discs, reach=JOINED))
    # Its dashes are 4 pixels apart, a step spans at most JOINED rows and columns; curves are cut a little.
    assert np.mean(fewest) > 0.6 * 4 * length / JOINED


def test_there_are_two_long_paths_and_distractors(images):
    length, made = images
    counts = []
    for image, _ in made:
        sizes = sorted((len(component) for component in components(pixels_where(image > 0), JOINED)), reverse=True)
        assert sizes[1] > 1.5 * sizes[2], "a distractor as long as a path"
        counts.append(len(sizes) - 2)
    assert min(counts) >= 1 and 0.5 * (20 // (length // 3)) < np.mean(counts) <= 20 // (length // 3)


def test_classes_are_balanced_and_in_no_simple_order(images):
    labels = [label for _, label in images[1]]
    assert sum(labels) == COUNT // 2
    assert labels != [0, 1] * (COUNT // 2) and labels != [1, 0] * (COUNT // 2)
    assert all(sum(labels[index : index + 2]) == 1 for index in range(0, COUNT, 2))


def test_nothing_simple_tells_the_classes_apart(images):
    """Neither the ink nor how far the discs lie apart: both classes are drawn from the same scenes."""
    figures = {0: [], 1: []}
    for image, label in images[1]:
        one, two = (np.mean(list(disc), axis=0) for disc in components(pixels_where(image == DISC), 1))
        figures[label].append((np.linalg.norm(one - two), (image > 0).sum()))
    means, deviations = ([f(figures[label], axis=0) for label in (0, 1)] for f in (np.mean, np.std))
    assert (np.abs(means[0] - means[1]) < 0.6 * np.mean(deviations, axis=0)).all()


def test_an_image_depends_on_seed_split_and_number_alone(images):
    length, made = images
    again, label = make_image(length, SEED, "train", 13)
    assert (again == made[13][0]).all() and label == made[13][1]
    others = [make_image(length, SEED + 1, "train", 13), make_image(length, SEED, "test", 13), made[12]]
    assert all((other != again).any() for other, _ in others)
